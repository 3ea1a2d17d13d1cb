// Command railweave-node is the node agent of the Kubernetes side of Railweave, and its tools.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sort"
	"syscall"
)

// exitError is an error that only sets the exit status; what there is to say was said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

type command struct {
	help string
	run  func(ctx context.Context, args []string) error
}

func commands() map[string]command {
	return map[string]command{
		"serve":      {"run the agent", serve},
		"preflight":  {"check this node", preflightCommand},
		"render-frr": {"print the FRR configuration the agent would apply", renderFRR},
		"tenancy":    {"tell whether a Namespace's tenant is in force on all nodes", tenancyCommand},
		"install":    {"copy the plugins to where the runtime looks for them", install},
	}
}

func usage(to io.Writer) {
	all := commands()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintln(to, "usage: railweave-node COMMAND [flags]")
	for _, name := range names {
		fmt.Fprintf(to, "  %-12s %s\n", name, all[name].help)
	}
}

func main() {
	if len(os.Args) < 2 {
		usage(os.Stderr)
		os.Exit(2)
	}
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, os.Args[1]) {
		usage(os.Stdout)
		return
	}
	chosen, known := commands()[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "railweave-node: there is no command %q\n", os.Args[1])
		usage(os.Stderr)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := chosen.run(ctx, os.Args[2:])
	var quiet exitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &quiet):
		os.Exit(int(quiet)) //nolint:gocritic // nothing is left to be stopped
	default:
		fmt.Fprintln(os.Stderr, "railweave-node:", err)
		os.Exit(1)
	}
}
