package testnet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// guardVariable tells a copy of this program that it is the guard of an instance.
const guardVariable = "RAILWEAVE_TESTNET_GUARD"

// guard is a second process, a copy of this program, that waits for the end of a pipe whose other end only the owner
// holds: the kernel closes it when the owner ends, be it by SIGKILL. Then the guard takes the instance down.
type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// RunGuardIfAsked must be the first call of every program that calls Up: it turns the program into a guard where it was
// started as one, and otherwise returns at once.
func RunGuardIfAsked() {
	id := os.Getenv(guardVariable)
	if id == "" {
		return
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := reclaim(id); err != nil {
		fmt.Fprintf(os.Stderr, "test network %s: %v\n", id, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// reclaim removes an instance whose owner has ended, unless the owner did it itself.
func reclaim(id string) error {
	var lock *instanceLock
	var err error
	// The lock goes with the owner's last thread, which may be a moment after its pipe.
	waitUntil(answerLimit, 20*time.Millisecond, func() bool {
		lock, err = lockInstance(id)
		return err == nil || errors.Is(err, os.ErrNotExist)
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(remove(id), lock.release())
}

func startGuard(id string) (*guard, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), guardVariable+"="+id)
	cmd.Stderr = os.Stderr
	// A session of its own: the terminal's Ctrl-C ends the owner, and the guard must outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start guard: %w", err)
	}
	return &guard{cmd: cmd, pipe: pipe}, nil
}

// dismiss ends a guard whose instance has been taken down.
func (g *guard) dismiss() error {
	return errors.Join(g.pipe.Close(), g.cmd.Wait())
}
