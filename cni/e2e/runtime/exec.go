package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// Call is one run of one plugin.
type Call struct {
	Plugin  string // file name
	Command string // CNI_COMMAND
	Took    time.Duration
	Err     error
}

// nodeExec runs plugins in a node's network namespace, which is where the kubelet's runtime runs them.
type nodeExec struct {
	version.PluginDecoder
	ns      testnet.Namespace
	observe func(Call)
	// interrupt, if set, may return a channel; when something arrives on it the plugin is killed.
	interrupt func(plugin, command string) <-chan time.Time
}

var _ invoke.Exec = (*nodeExec)(nil)

// FindInPath finds a plugin's file.
func (e *nodeExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin once. A plugin's error is on its standard output, as the CNI specification has it.
func (e *nodeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	// A delegate (IPAM) of a killed plugin may hold the pipes a little longer.
	cmd.WaitDelay = 10 * time.Second
	began := time.Now()
	err := e.ns.Do(cmd.Start)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	name, command := filepath.Base(path), variable(environ, "CNI_COMMAND")
	finished := make(chan struct{})
	if e.interrupt != nil {
		if when := e.interrupt(name, command); when != nil {
			go func() {
				select {
				case <-when:
					_ = cmd.Process.Kill()
				case <-finished:
				}
			}()
		}
	}
	err = cmd.Wait()
	close(finished)
	if err != nil {
		err = pluginError(name, err, stdout.Bytes(), stderr.Bytes())
	}
	if e.observe != nil {
		e.observe(Call{Plugin: name, Command: command, Took: time.Since(began), Err: err})
	}
	return stdout.Bytes(), err
}

func variable(environ []string, name string) string {
	for _, entry := range environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// pluginError prefers the plugin's own words.
func pluginError(name string, err error, stdout, stderr []byte) error {
	var said types.Error
	if json.Unmarshal(stdout, &said) == nil && said.Msg != "" {
		return &PluginError{Plugin: name, Code: said.Code, Message: said.Msg, Details: said.Details}
	}
	return fmt.Errorf("%s: %w: %s %s", name, err, bytes.TrimSpace(stdout), bytes.TrimSpace(stderr))
}

// PluginError is the error a plugin answered with.
type PluginError struct {
	Plugin           string
	Code             uint
	Message, Details string
}

func (e *PluginError) Error() string {
	text := fmt.Sprintf("%s: code %d: %s", e.Plugin, e.Code, e.Message)
	if e.Details != "" {
		text += ": " + e.Details
	}
	return text
}
