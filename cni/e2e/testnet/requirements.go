package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrUnavailable marks a machine on which the test network cannot run, as opposed to a failure of the network.
var ErrUnavailable = errors.New("the test network cannot run here")

// Requirements reports everything this machine lacks, in one error that says how to get it.
func Requirements() error {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root (network namespaces): run as root")
	}
	for _, p := range []struct{ program, pkg string }{
		{"ip", "iproute2"}, {"ovs-vswitchd", "openvswitch-switch"}, {"ovsdb-server", "openvswitch-switch"},
		{filepath.Join(FRRDaemonDir, "bgpd"), "frr"}, {"vtysh", "frr"}, {FRRDaemonDir + "/frr-reload.py", "frr-pythontools"}, {"ss", "iproute2"},
	} {
		if _, err := exec.LookPath(p.program); err != nil {
			missing = append(missing, fmt.Sprintf("%s: apt-get install %s", filepath.Base(p.program), p.pkg))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: missing %s", ErrUnavailable, strings.Join(missing, "; "))
}
