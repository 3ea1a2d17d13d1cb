// Command soak adds and removes pods at random under random kills, and audits everything after each round.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/railweave/railweave/cni/e2e/soak"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

func main() {
	testnet.RunGuardIfAsked()
	operations := flag.Int("operations", 10000, "successful ADDs and DELs of attachments")
	round := flag.Int("round", 100, "operations between audits")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the random choices")
	keep := flag.Bool("keep", false, "leave the network standing when something was found; take it down with testnet down ID")
	flag.Parse()
	result, err := soak.Run(soak.Options{Operations: *operations, Round: *round, Seed: *seed, Keep: *keep, Log: os.Stdout})
	fmt.Printf("%d operations on %d pods in %v, %d failed ADDs, %d repeated DELs, kills %v, seed %d\n", result.Operations, result.Pods,
		result.Took.Round(time.Second), result.FailedAdds, result.RepeatedDeletes, result.Kills, *seed)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}
