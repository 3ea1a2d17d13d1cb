package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListen: the socket's directory is closed, and nothing that is not the agent's is closed or removed for it.
func TestListen(t *testing.T) {
	stale := func(t *testing.T, path string) {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		listener.SetUnlinkOnClose(false)
		_ = listener.Close()
	}
	file := func(name string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte("of somebody"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name    string
		mode    os.FileMode // of the directory before; 0: there is none
		prepare func(t *testing.T, path string)
		refused string
	}{
		{"no directory", 0, nil, ""},
		{"an open directory, as a kubelet makes it", 0o755, nil, ""},
		{"the socket of an agent that was killed", 0o755, stale, ""},
		{"a closed directory with something else", 0o700, file("other"), ""},
		{"an open directory of others", 0o755, file("other"), "other"},
		{"a file in the socket's place", 0o755, file("node.sock"), "something else"},
		{"another agent", 0o700, func(t *testing.T, path string) {
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
		}, "another agent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "railweave")
			path := filepath.Join(dir, "node.sock")
			if test.mode != 0 {
				if err := os.Mkdir(dir, test.mode); err != nil {
					t.Fatal(err)
				}
			}
			if test.prepare != nil {
				test.prepare(t, path)
			}
			before, _ := os.ReadDir(dir)
			listener, err := Listen(path)
			if test.refused == "" {
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = listener.Close() }()
				if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
					t.Errorf("%v, %v", info.Mode(), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.refused) || !strings.Contains(err.Error(), path) {
				t.Fatalf("%v", err)
			}
			after, _ := os.ReadDir(dir)
			if len(after) != len(before) {
				t.Errorf("%v was %v", after, before)
			}
			// A file in the socket's place is found after the directory, which has nothing else in it, was closed.
			if info, err := os.Stat(dir); test.refused == "other" && (err != nil || info.Mode().Perm() != test.mode) {
				t.Errorf("%v, %v", info.Mode(), err)
			}
		})
	}
}

// TestPeers: who may call is asked of the kernel. The socket is one without a file, whose mode could keep others out, too.
func TestPeers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can connect as somebody else")
	}
	const nobody = 65534
	listener, err := net.Listen("unix", fmt.Sprintf("@railweave-peers-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	for uid, refused := range map[int]bool{0: false, nobody: true} {
		client, err := dialAs(uid, listener.Addr().String())
		if err != nil {
			t.Fatalf("user %d: %v", uid, err)
		}
		connection, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = peerCredentials{}.ServerHandshake(connection)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "user 65534") {
			t.Errorf("user %d: %v", uid, err)
		}
		_, _ = client.Close(), connection.Close()
	}
}

// dialAs connects with the effective user id of somebody else: the thread's, which is given back or, if that fails, not used again.
func dialAs(uid int, address string) (net.Conn, error) {
	runtime.LockOSThread()
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return nil, errno
	}
	connection, err := net.Dial("unix", address)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return nil, errors.Join(err, errno)
	}
	runtime.UnlockOSThread()
	return connection, err
}
