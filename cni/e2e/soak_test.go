package e2e

import (
	"testing"

	"github.com/railweave/railweave/cni/e2e/soak"
)

// TestSoak is the short form of `go run ./e2e/cmd/soak`, which does ten thousand.
func TestSoak(t *testing.T) {
	needNetwork(t)
	result, err := soak.Run(soak.Options{Operations: 200, Round: 100, Seed: 1, Log: t.Output()})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%+v", result)
}
