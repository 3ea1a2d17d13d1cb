package testnet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// NamespaceDir is where `ip netns` and container runtimes keep named network namespaces.
const NamespaceDir = "/run/netns"

// The first thread stays with the main goroutine: Do changes the namespace of the thread it runs on and lets it end
// with its goroutine, but a process's first thread cannot end, and the whole process would be seen in that namespace.
func init() { runtime.LockOSThread() }

// Namespace is one named network namespace.
type Namespace struct{ Name string }

// Path is the file that holds the namespace open, as CNI_NETNS wants it.
func (n Namespace) Path() string { return filepath.Join(NamespaceDir, n.Name) }

// CreateNamespace makes a named namespace with its loopback up. It goes through `ip netns` because that also makes
// NamespaceDir a shared mount, without which daemons started earlier would not see namespaces made later.
func CreateNamespace(name string) (Namespace, error) {
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		return Namespace{}, fmt.Errorf("create namespace %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	n := Namespace{Name: name}
	if err := n.Run("ip", "link", "set", "lo", "up"); err != nil {
		return Namespace{}, errors.Join(err, n.Delete())
	}
	return n, nil
}

// Inode is the namespace's identity in the kernel: it survives neither deletion nor a new namespace of the same name.
func (n Namespace) Inode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(n.Path(), &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", n.Path(), err)
	}
	return st.Ino, nil
}

// Command prepares a program inside the namespace. `ip netns exec` rather than a bare setns: it also gives the program
// a /sys of that namespace, which programs that look for /sys/class/net need.
func (n Namespace) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name, name}, args...)...)
}

// Run runs a program inside the namespace and returns its output as part of the error when it fails.
func (n Namespace) Run(name string, args ...string) error {
	_, err := n.Output(name, args...)
	return err
}

// Output runs a program inside the namespace and returns its standard output.
func (n Namespace) Output(name string, args ...string) (string, error) {
	return output(n.Command(name, args...))
}

func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Do calls f on an operating-system thread that is in the namespace. Sockets and /proc/sys/net files opened by f belong
// to the namespace for good.
func (n Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is not unlocked: it ends with the goroutine instead of going back, changed, to the scheduler.
		runtime.LockOSThread()
		fd, err := unix.Open(n.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- fmt.Errorf("open %s: %w", n.Path(), err)
			return
		}
		err = unix.Setns(fd, unix.CLONE_NEWNET)
		_ = unix.Close(fd)
		if err != nil {
			done <- fmt.Errorf("enter %s: %w", n.Name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Sysctl sets a net.* kernel setting of the namespace; key is the path below /proc/sys/net.
func (n Namespace) Sysctl(key, value string) error {
	return n.Do(func() error {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte(value), 0o644); err != nil {
			return fmt.Errorf("namespace %s: %w", n.Name, err)
		}
		return nil
	})
}

// Delete ends every process in the namespace and removes it. Deleting a namespace that is gone is not an error.
func (n Namespace) Delete() error {
	if err := n.kill(); err != nil {
		return err
	}
	err := unix.Unmount(n.Path(), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", n.Path(), err)
	}
	if err := os.Remove(n.Path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Processes lists the processes whose network namespace this is.
func (n Namespace) Processes() ([]int, error) {
	inode, err := n.Inode()
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	link := fmt.Sprintf("net:[%d]", inode)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if got, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net")); err == nil && got == link {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// kill ends the namespace's processes. Rounds are needed because a monitor may start its daemon again between listing
// and killing; five are plenty for a parent and a child.
func (n Namespace) kill() error {
	for range 5 {
		pids, err := n.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if pid == os.Getpid() {
				return fmt.Errorf("namespace %s is this process's own: leave it before deleting it", n.Name)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		waitGone(pids, 2*time.Second)
	}
	return fmt.Errorf("namespace %s: processes keep coming back", n.Name)
}

// waitGone waits, for at most limit, until none of the processes is left (a zombie counts as gone: it holds nothing).
func waitGone(pids []int, limit time.Duration) bool {
	return waitUntil(limit, 5*time.Millisecond, func() bool {
		for _, pid := range pids {
			if alive(pid) {
				return false
			}
		}
		return true
	})
}

// alive reports whether any thread of the process is left.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the command name, which is in parentheses and may itself contain some.
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+1:])
	if !strings.HasPrefix(strings.TrimSpace(rest), "Z") {
		return true
	}
	// Of a process that is killed the first thread may be gone before others, which hold its files until they are, and the
	// locks on them: ovs-vswitchd, started then, finds its pid file still taken.
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(threads) > 1
}

// waitUntil polls cond at the given interval until it holds or limit has passed, and returns whether it held.
func waitUntil(limit, interval time.Duration, cond func() bool) bool {
	deadline := time.Now().Add(limit)
	for {
		if cond() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(interval)
	}
}
