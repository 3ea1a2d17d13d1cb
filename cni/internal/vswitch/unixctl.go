package vswitch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func inode(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		// Inode numbers of a tmpfs are reused at once; with the time of creation they are not mistaken for each other.
		return stat.Ino ^ uint64(stat.Ctim.Nano()) // #nosec G115 -- a fingerprint
	}
	return 0
}

// Command runs a command of ovs-vswitchd over its control socket, as ovs-appctl does (ovs-appctl(8): JSON-RPC, one request).
func (s *Switch) Command(ctx context.Context, method string, args ...string) (string, error) {
	pid, err := os.ReadFile(filepath.Join(s.runDir, "ovs-vswitchd.pid"))
	if err != nil {
		return "", fmt.Errorf("ovs-vswitchd is not running in %s: %w", s.runDir, err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		return "", fmt.Errorf("ovs-vswitchd.pid in %s: %w", s.runDir, err)
	}
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", filepath.Join(s.runDir, fmt.Sprintf("ovs-vswitchd.%d.ctl", number)))
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }() // nothing is lost: the answer was read or failed
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(ofctlTimeout)
	}
	if err := connection.SetDeadline(deadline); err != nil {
		return "", err
	}
	if args == nil {
		args = []string{}
	}
	request := map[string]any{"id": 0, "method": method, "params": args}
	if err := json.NewEncoder(connection).Encode(request); err != nil {
		return "", err
	}
	var answer struct {
		Result *string `json:"result"`
		Error  any     `json:"error"`
	}
	if err := json.NewDecoder(connection).Decode(&answer); err != nil {
		return "", fmt.Errorf("%s: %w", method, err)
	}
	if answer.Error != nil {
		return "", fmt.Errorf("%s: %v", method, answer.Error)
	}
	return deref(answer.Result), nil
}

// answerTime: ovs-vswitchd answers within a millisecond, and within seconds while it takes in hundreds of ports.
const answerTime = 5 * time.Second

// Answers tells why ovs-vswitchd does not answer; nil if it does. Files tell nothing of one that was killed or hangs.
func (s *Switch) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, err := s.Command(ctx, "version")
	return err
}

// nudge is a flow in a table nothing leads to, added and deleted in one bundle: it changes nothing, but revalidators wake.
const nudge = "add table=253,priority=0,cookie=0x5257000000000003,actions=drop\ndelete cookie=0x5257000000000003/-1,table=253\n"

// rounds: the first dump that ends may have begun before the flows changed; the second has not.
const rounds = 2

// Revalidate returns when no cached (mega)flow, in software or in hardware, is older than the flow tables now are. Without a
// bridge to nudge, idle revalidators take up to half a second a round (max-revalidator).
func (s *Switch) Revalidate(ctx context.Context, bridge string) error {
	for range rounds {
		waited := make(chan error, 1)
		go func() {
			_, err := s.Command(ctx, "revalidator/wait")
			waited <- err
		}()
		if bridge != "" {
			// The wait must be there before the nudge; if it is not, it only takes longer.
			time.Sleep(nudgeDelay)
			if err := s.Apply(ctx, bridge, nudge); err != nil {
				return errors.Join(err, <-waited)
			}
		}
		if err := <-waited; err != nil {
			return err
		}
	}
	return nil
}

// nudgeDelay: a command reaches ovs-vswitchd within a millisecond.
const nudgeDelay = time.Millisecond
