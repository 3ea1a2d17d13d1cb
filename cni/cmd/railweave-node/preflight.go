package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/railweave/railweave/cni/internal/preflight"
)

func preflightCommand(ctx context.Context, args []string) error {
	asJSON, reportOnly := false, false
	config, err := parseFlags("preflight", args, func(set *flag.FlagSet) {
		set.BoolVar(&asJSON, "json", false, "print JSON")
		set.BoolVar(&reportOnly, "report-only", false, "exit with 0 whatever was found")
	})
	if err != nil {
		return err
	}
	findings := preflight.Judge(config, preflight.Gather(ctx, config))
	if err := printFindings(findings, asJSON); err != nil {
		return err
	}
	if preflight.Failed(findings) && !reportOnly {
		return exitError(1)
	}
	return nil
}

func printFindings(findings []preflight.Finding, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(findings)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	for _, finding := range findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", finding.Level, finding.Check, finding.Found)
		if finding.Remedy != "" {
			fmt.Fprintf(table, "\t\t-> %s\n", finding.Remedy)
		}
	}
	return table.Flush()
}
