package main

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"

	"github.com/railweave/railweave/cni/internal/durable"
)

var plugins = []string{"railweave-ovs", "railweave-frr"}

// install replaces the plugins, so that a runtime that calls one meanwhile finds the old or the new.
func install(_ context.Context, args []string) error {
	set := flag.NewFlagSet("install", flag.ContinueOnError)
	from := set.String("from", "/usr/libexec/railweave", "directory with the plugins")
	to := set.String("to", "/opt/cni/bin", "the runtime's plugin directory")
	if err := set.Parse(args); err != nil {
		return err
	}
	if err := noArguments(set); err != nil {
		return err
	}
	for _, name := range plugins {
		if err := installFile(filepath.Join(*from, name), filepath.Join(*to, name)); err != nil {
			return err
		}
	}
	return nil
}

func installFile(from, to string) error {
	source, err := os.Open(from) // #nosec G304 -- named by the operator
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // opened for reading
	durable.Tidy(filepath.Dir(to), "."+filepath.Base(to)+"-*")
	return durable.Replace(to, 0o755, func(target io.Writer) error { // a program
		_, err := io.Copy(target, source)
		return err
	})
}
