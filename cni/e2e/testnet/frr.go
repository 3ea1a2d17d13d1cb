package testnet

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// FRRDaemonDir is where Debian's package puts the routing daemons.
const FRRDaemonDir = "/usr/lib/frr"

// frrConfigDir and frrRunDir are compiled into FRR; a pathspace is a directory below each.
const (
	frrConfigDir = "/etc/frr"
	frrRunDir    = "/var/run/frr"
)

// FRR is one set of routing daemons (zebra, bgpd, bfdd; from FRR 10 on also mgmtd, which has zebra's configuration there) in a
// namespace. Its pathspace is the namespace's name.
type FRR struct {
	ns  Namespace
	dir string // for logs
}

// Pathspace is the value for -N of FRR's programs.
func (f FRR) Pathspace() string { return f.ns.Name }

// ConfigDir is the directory of frr.conf and vtysh.conf.
func (f FRR) ConfigDir() string { return filepath.Join(frrConfigDir, f.Pathspace()) }

// RunDir is the directory of the daemons' sockets and pid files.
func (f FRR) RunDir() string { return filepath.Join(frrRunDir, f.Pathspace()) }

func (f FRR) daemon(name string, args ...string) daemon {
	pidfile := filepath.Join(f.RunDir(), name+".pid")
	return daemon{ns: f.ns, program: filepath.Join(FRRDaemonDir, name), pidfile: pidfile, args: append([]string{
		"-d", "-N", f.Pathspace(), "-P", "0", "-i", pidfile, "--log", "file:" + filepath.Join(f.dir, name+".log")},
		args...)}
}

func (f FRR) daemons() []daemon {
	// -K: routes left in the kernel by an earlier zebra stay for 120 s, long enough for graceful restart to relearn them.
	all := []daemon{f.daemon("zebra", "-s", "90000000", "-K", "120"), f.daemon("bgpd"), f.daemon("bfdd")}
	if mgmtd := f.daemon("mgmtd"); exists(mgmtd.program) {
		all = append([]daemon{mgmtd}, all...)
	}
	return all
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// create makes the pathspace with the given configuration and starts the daemons.
func (f FRR) create(config string) error {
	for _, dir := range []string{f.ConfigDir(), f.RunDir(), f.dir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := chownFRR(dir); err != nil {
			return err
		}
	}
	// vtysh refuses a pathspace without a vtysh.conf of its own, even an empty one.
	if err := os.WriteFile(filepath.Join(f.ConfigDir(), "vtysh.conf"), nil, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(f.ConfigDir(), "frr.conf"), []byte(config), 0o640); err != nil {
		return err
	}
	if err := chownFRR(filepath.Join(f.ConfigDir(), "frr.conf")); err != nil {
		return err
	}
	return f.Start()
}

// Start starts the daemons and lets them read frr.conf, as FRR's service script does.
func (f FRR) Start() error {
	for _, d := range f.daemons() {
		if d.running() {
			continue
		}
		if err := d.start(); err != nil {
			return err
		}
	}
	return f.ns.Run("vtysh", "-N", f.Pathspace(), "-b")
}

// Kill ends all daemons without notice.
func (f FRR) Kill() error { return f.stop(syscall.SIGKILL) }

func (f FRR) stop(sig syscall.Signal) error {
	for _, d := range f.daemons() {
		if err := d.stop(sig); err != nil {
			return err
		}
	}
	return nil
}

// KillDaemon ends one of zebra, bgpd and bfdd without notice.
func (f FRR) KillDaemon(name string) error { return f.daemon(name).stop(syscall.SIGKILL) }

// Running reports whether all daemons run.
func (f FRR) Running() bool {
	for _, d := range f.daemons() {
		if !d.running() {
			return false
		}
	}
	return true
}

// VTYSH runs commands (each a whole command line) and returns what they print.
func (f FRR) VTYSH(commands ...string) (string, error) {
	args := []string{"-N", f.Pathspace()}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return f.ns.Output("vtysh", args...)
}

// remove deletes the pathspace's directories.
func (f FRR) remove() error {
	for _, dir := range []string{f.ConfigDir(), f.RunDir()} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// chownFRR gives a file to the user the daemons change to.
func chownFRR(path string) error {
	if out, err := exec.Command("chown", "frr:frr", path).CombinedOutput(); err != nil {
		return fmt.Errorf("chown frr %s: %w: %s", path, err, strings.TrimSpace(string(out)))
	}
	return nil
}
