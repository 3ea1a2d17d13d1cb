package vswitch

import (
	"context"
	"encoding/json"
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

// Revalidate returns when no cached (mega)flow, in software or in hardware, is older than the flow tables now are.
func (s *Switch) Revalidate(ctx context.Context) error {
	_, err := s.Command(ctx, "revalidator/wait")
	return err
}
