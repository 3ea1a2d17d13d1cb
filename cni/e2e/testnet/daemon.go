package testnet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// answerLimit bounds how long a program may take to answer or to end. All do so within milliseconds; the machine may stand still for
// seconds, several times in a row.
const answerLimit = 30 * time.Second

// daemon is a program that puts itself into the background and leaves a pid file.
type daemon struct {
	ns      Namespace
	program string
	args    []string
	env     []string
	pidfile string
}

// start runs the daemon; it returns when the daemon has detached, which for all of ours means it is serving.
func (d daemon) start() error {
	cmd := d.ns.Command(d.program, d.args...)
	cmd.Env = append(os.Environ(), d.env...)
	// Not the session of a terminal: Ctrl-C must reach the owner, which then takes things down in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A file, as who reads a pipe would wait for the daemon's end: FRR 10's zebra keeps its standard output.
	said, err := os.CreateTemp("", filepath.Base(d.program)+"-")
	if err != nil {
		return err
	}
	defer func() { _ = said.Close() }()
	if err := os.Remove(said.Name()); err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		text, _ := io.ReadAll(io.NewSectionReader(said, 0, 1<<16))
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(text)))
	}
	if _, err := d.pid(); err != nil {
		return fmt.Errorf("%s started but left no pid: %w", filepath.Base(d.program), err)
	}
	return nil
}

func (d daemon) pid() (int, error) {
	text, err := os.ReadFile(d.pidfile)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.pidfile, err)
	}
	return pid, nil
}

func (d daemon) running() bool {
	pid, err := d.pid()
	return err == nil && alive(pid)
}

// stop sends the signal and waits until the process is gone; a daemon that is not running is not an error.
func (d daemon) stop(sig syscall.Signal) error {
	pid, err := d.pid()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !d.owns(pid) {
		return nil // the pid file is a leftover and its number belongs to somebody else by now
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s: %w", filepath.Base(d.program), err)
	}
	if !waitGone([]int{pid}, answerLimit) {
		return fmt.Errorf("%s (pid %d) did not end within %v of signal %v", filepath.Base(d.program), pid, answerLimit, sig)
	}
	return nil
}

// owns reports whether a process is in the daemon's namespace.
func (d daemon) owns(pid int) bool {
	inode, err := d.ns.Inode()
	if err != nil {
		return false
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && link == fmt.Sprintf("net:[%d]", inode)
}
