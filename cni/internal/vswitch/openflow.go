package vswitch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Switch changes and reads the flows of bridges. Every change is one bundle: the switch takes all of it or nothing.
type Switch struct {
	runDir  string
	program string
}

// ofctlTimeout: 10,000 flows are replaced in 0.14 s on the userspace datapath; a switch that needs seconds is not answering.
const ofctlTimeout = 10 * time.Second

// NewSwitch speaks to the bridges of an OVS_RUNDIR.
func NewSwitch(runDir string) *Switch { return &Switch{runDir: runDir, program: "ovs-ofctl"} }

// Socket is the bridge's management socket. It is made anew whenever ovs-vswitchd starts.
func (s *Switch) Socket(bridge string) string { return filepath.Join(s.runDir, bridge+".mgmt") }

// Incarnation changes when ovs-vswitchd restarts or makes the bridge anew; 0 while there is none.
func (s *Switch) Incarnation(bridge string) uint64 {
	return inode(s.Socket(bridge))
}

// ExitError is a program that failed, with what it said.
type ExitError struct {
	Program, Said string
	Cause         error
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.Program, e.Cause, strings.TrimSpace(e.Said))
}

func (e *ExitError) Unwrap() error { return e.Cause }

// ofctl runs ovs-ofctl without a shell; input goes to its stdin, never onto the command line. Without --no-names it would first
// ask for the names of tables, with all their features: 1.3 MB, 15 of the 25 ms that a change of flows took.
func (s *Switch) ofctl(ctx context.Context, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ofctlTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, s.program, append([]string{"-O", "OpenFlow14", "--timeout=15", "--no-names"}, args...)...) // #nosec G204 -- constant verbs, checked bridge name
	command.Env = append(os.Environ(), "OVS_RUNDIR="+s.runDir)
	command.Stdin = strings.NewReader(input)
	var out, said bytes.Buffer
	command.Stdout, command.Stderr = &out, &said
	if err := command.Run(); err != nil {
		if ctx.Err() != nil { // before ovs-ofctl's own limit, which is for one that has outlived its agent
			err = fmt.Errorf("%w: %w", ErrSilent, ctx.Err())
		}
		return out.String(), &ExitError{s.program + " " + args[len(args)-1], said.String(), err}
	}
	return out.String(), nil
}

func (s *Switch) target(bridge string) string { return "unix:" + s.Socket(bridge) }

// Apply sends a bundle in the language of ovs-ofctl add-flows.
func (s *Switch) Apply(ctx context.Context, bridge, bundle string) error {
	_, err := s.ofctl(ctx, bundle, "--bundle", "add-flows", s.target(bridge), "-")
	return err
}

// Replace makes the program the bridge's only flows, in one bundle that changes just what differs.
func (s *Switch) Replace(ctx context.Context, bridge, program string) error {
	_, err := s.ofctl(ctx, program, "--bundle", "replace-flows", s.target(bridge), "-")
	return err
}

// Differences lists the lines in which the bridge differs from a program: "-" only on the bridge, "+" only in the program.
func (s *Switch) Differences(ctx context.Context, bridge, program string) ([]string, error) {
	text, err := s.ofctl(ctx, program, "diff-flows", s.target(bridge), "/dev/stdin")
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 2) { // 2: there are differences
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

var portLine = regexp.MustCompile(`(?m)^ *(\d+)\(([^)]+)\): addr:`)

// PortNumbers are the OpenFlow numbers the switch itself has, which the database may lag behind after a restart.
func (s *Switch) PortNumbers(ctx context.Context, bridge string) (map[string]int, error) {
	text, err := s.ofctl(ctx, "", "dump-ports-desc", s.target(bridge))
	if err != nil {
		return nil, err
	}
	numbers := map[string]int{}
	for _, match := range portLine.FindAllStringSubmatch(text, -1) {
		number, err := strconv.Atoi(match[1])
		if err != nil {
			return nil, err
		}
		numbers[match[2]] = number
	}
	return numbers, nil
}
