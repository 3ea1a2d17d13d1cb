package e2e

import (
	"errors"
	"os"
	"testing"

	"github.com/railweave/railweave/cni/e2e/soak"
	"github.com/railweave/railweave/cni/e2e/testnet"
)

// TestSoak is the short form of `go run ./e2e/cmd/soak`, which does ten thousand.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("end-to-end: not with -short")
	}
	if err := testnet.Requirements(); errors.Is(err, testnet.ErrUnavailable) {
		if os.Getenv(requireVariable) != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	result, err := soak.Run(soak.Options{Operations: 200, Round: 100, Seed: 1, Log: t.Output()})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%+v", result)
}
