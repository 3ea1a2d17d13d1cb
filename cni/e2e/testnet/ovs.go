package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// OpenVSwitch is one instance of Open vSwitch (database server and switch, userspace datapath) in a namespace.
type OpenVSwitch struct {
	ns  Namespace
	dir string
}

// RunDir holds the sockets: db.sock of the database, and <bridge>.mgmt of each bridge.
func (o OpenVSwitch) RunDir() string { return filepath.Join(o.dir, "run") }

// DatabaseSocket is the path of the database's unix socket.
func (o OpenVSwitch) DatabaseSocket() string { return filepath.Join(o.RunDir(), "db.sock") }

// Environment makes Open vSwitch's programs use this instance.
func (o OpenVSwitch) Environment() []string {
	return []string{"OVS_RUNDIR=" + o.RunDir(), "OVS_DBDIR=" + o.dir, "OVS_LOGDIR=" + o.dir,
		"OVS_SYSCONFDIR=" + o.dir}
}

func (o OpenVSwitch) database() daemon {
	pidfile := filepath.Join(o.RunDir(), "ovsdb-server.pid")
	return daemon{ns: o.ns, program: "ovsdb-server", env: o.Environment(), pidfile: pidfile, args: []string{
		filepath.Join(o.dir, "conf.db"), "--remote=punix:" + o.DatabaseSocket(), "--no-chdir", "--detach",
		"--pidfile=" + pidfile, "--log-file=" + filepath.Join(o.dir, "ovsdb-server.log"), "-vconsole:off"}}
}

func (o OpenVSwitch) vswitchd() daemon {
	pidfile := filepath.Join(o.RunDir(), "ovs-vswitchd.pid")
	// The kernel datapath is switched off: where the module exists it would be shared between namespaces.
	return daemon{ns: o.ns, program: "ovs-vswitchd", env: o.Environment(), pidfile: pidfile, args: []string{
		"unix:" + o.DatabaseSocket(), "--disable-system", "--no-chdir", "--detach", "--pidfile=" + pidfile,
		"--log-file=" + filepath.Join(o.dir, "ovs-vswitchd.log"), "-vconsole:off"}}
}

// create makes the database and starts both daemons.
func (o OpenVSwitch) create() error {
	if err := os.MkdirAll(o.RunDir(), 0o755); err != nil {
		return err
	}
	conf := filepath.Join(o.dir, "conf.db")
	if err := o.ns.Run("ovsdb-tool", "create", conf, "/usr/share/openvswitch/vswitch.ovsschema"); err != nil {
		return err
	}
	if err := o.database().start(); err != nil {
		return err
	}
	if _, err := o.VSCtl("--no-wait", "init", "--", "set", "Open_vSwitch", ".",
		"external_ids:system-id="+o.ns.Name, "other_config:hw-offload=true"); err != nil {
		return err
	}
	return o.vswitchd().start()
}

var ovsTimeout = fmt.Sprintf("--timeout=%.0f", answerLimit.Seconds())

// VSCtl runs ovs-vsctl. It gives up after a while, so that a dead vswitchd makes an error and not a hang.
func (o OpenVSwitch) VSCtl(args ...string) (string, error) {
	cmd := o.ns.Command("ovs-vsctl", append([]string{ovsTimeout}, args...)...)
	cmd.Env = append(os.Environ(), o.Environment()...)
	out, err := output(cmd)
	return strings.TrimSpace(out), err
}

// OFCtl runs ovs-ofctl.
func (o OpenVSwitch) OFCtl(args ...string) (string, error) {
	cmd := o.ns.Command("ovs-ofctl", append([]string{ovsTimeout, "-O", "OpenFlow15"}, args...)...)
	cmd.Env = append(os.Environ(), o.Environment()...)
	return output(cmd)
}

// AppCtl runs ovs-appctl against vswitchd.
func (o OpenVSwitch) AppCtl(args ...string) (string, error) {
	cmd := o.ns.Command("ovs-appctl", append([]string{ovsTimeout}, args...)...)
	cmd.Env = append(os.Environ(), o.Environment()...)
	return output(cmd)
}

// KillSwitch ends vswitchd without notice; its flows are gone, its database rows stay.
func (o OpenVSwitch) KillSwitch() error { return o.vswitchd().stop(syscall.SIGKILL) }

// StartSwitch starts vswitchd again, as its service would.
func (o OpenVSwitch) StartSwitch() error { return o.vswitchd().start() }

// KillDatabase ends ovsdb-server without notice.
func (o OpenVSwitch) KillDatabase() error { return o.database().stop(syscall.SIGKILL) }

// StartDatabase starts ovsdb-server again.
func (o OpenVSwitch) StartDatabase() error { return o.database().start() }

// Running reports whether both daemons run.
func (o OpenVSwitch) Running() bool { return o.database().running() && o.vswitchd().running() }

// Log returns the switch's log file.
func (o OpenVSwitch) Log() string { return filepath.Join(o.dir, "ovs-vswitchd.log") }

// socketDrops matches the drop counter in the memory line of `ss -m`.
var socketDrops = regexp.MustCompile(`skmem:\([^)]*,d(\d+)\)`)

// lostUpcalls matches the datapath's statistics, as in "lookups: hit:12 missed:3 lost:0".
var lostUpcalls = regexp.MustCompile(`lost:(\d+)`)

// Overflow counts the packets that the switch never judged: those that did not fit into the sockets through which the
// userspace datapath reads its ports, and those it lost on the way to the slow path. A probe that vanished proves
// something only while this number stands still.
func (o OpenVSwitch) Overflow() (uint64, error) {
	sockets, err := o.ns.Output("ss", "-0", "-m")
	if err != nil {
		return 0, err
	}
	datapath, err := o.AppCtl("dpctl/show")
	if err != nil {
		return 0, err
	}
	var all uint64
	for _, m := range append(socketDrops.FindAllStringSubmatch(sockets, -1), lostUpcalls.FindAllStringSubmatch(datapath, -1)...) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			return 0, err
		}
		all += n
	}
	return all, nil
}

// Backlog is the most bytes that wait in any packet socket of the node, among them those through which the switch reads
// its ports (/proc/net/packet, column Rmem). A switch that is not running has none.
func (o OpenVSwitch) Backlog() (int, error) {
	pid, err := o.vswitchd().pid()
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/packet", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL) {
		return 0, nil // killed a moment ago
	}
	if err != nil {
		return 0, err
	}
	const rmem = 6
	most := 0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) <= rmem || fields[0] == "sk" {
			continue
		}
		n, err := strconv.Atoi(fields[rmem])
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}
