package failure

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
)

// TestEveryReasonHasCodes: a reason added to the contract must get its codes here.
func TestEveryReasonHasCodes(t *testing.T) {
	for number, name := range nodev1.Reason_name {
		if number == 0 {
			continue
		}
		if _, ok := pairs[nodev1.Reason(number)]; !ok {
			t.Errorf("%s has no codes", name)
		}
	}
	if unknown := Codes(nodev1.Reason(9999)); unknown.GRPC != codes.Internal || unknown.CNI != CNIInternal {
		t.Errorf("a reason outside the contract: %+v", unknown)
	}
}

func TestReasonSurvivesWrappingAndTheWire(t *testing.T) {
	plain := New(nodev1.Reason_ADDRESS_IN_USE, "10.0.0.5", "ask the IPAM", "pod %s has it", "a/b").Because(errors.New("cause"))
	wrapped := fmt.Errorf("attach: %w", plain)
	if got := ReasonOf(wrapped); got != nodev1.Reason_ADDRESS_IN_USE {
		t.Errorf("wrapped: %v", got)
	}
	received := plain.GRPCStatus().Err()
	if got := ReasonOf(received); got != nodev1.Reason_ADDRESS_IN_USE {
		t.Errorf("received: %v", got)
	}
	for _, part := range []string{"10.0.0.5", "pod a/b has it", "cause", "ask the IPAM"} {
		if !strings.Contains(received.Error(), part) {
			t.Errorf("%q does not say %q", received, part)
		}
	}
	if got := ReasonOf(errors.New("other")); got != nodev1.Reason_REASON_UNSPECIFIED {
		t.Errorf("untyped: %v", got)
	}
}

func TestStatusCodes(t *testing.T) {
	for reason, want := range map[nodev1.Reason]uint{
		nodev1.Reason_RAIL_DOWN: 51, nodev1.Reason_TENANCY_STALE: 51,
		nodev1.Reason_NOT_READY: 50, nodev1.Reason_BRIDGE_MISSING: 50, nodev1.Reason_BRIDGE_FOREIGN: 50, nodev1.Reason_REASON_UNSPECIFIED: 50,
		nodev1.Reason_RAIL_UNKNOWN: 7,
	} {
		if got := StatusCode(reason); got != want {
			t.Errorf("%v: %d, want %d", reason, got, want)
		}
	}
}
