package frr

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

// Session is the state of a rail's way to its leaf.
type Session struct {
	Established bool
	// BFDDown: BFD is on and its session is not up.
	BFDDown bool
	// ZebraAway: bgpd has no connection to zebra, so that announcements and withdrawals do not reach it.
	ZebraAway bool
	Peer      netip.Addr // the leaf's address on the link, with zone if link-local
	Prefixes  int        // received
	// OverLimit: more of one family than frr.maximumPrefixes. bgpd goes on all the same.
	OverLimit bool
}

// Daemon is FRR as it runs in one pathspace.
type Daemon struct {
	config *nodeconfig.Config
	// applied is `show running-config` right after the configuration was last found or made right.
	applied string
}

// New speaks to the FRR the node file names.
func New(config *nodeconfig.Config) *Daemon { return &Daemon{config: config} }

// A vtysh call takes about 40 ms; frr-reload.py 43 ms a changed line.
const (
	vtyshTimeout  = 5 * time.Second
	reloadTimeout = 60 * time.Second
)

// ExitError is a program that failed, with what it said.
type ExitError struct {
	Program, Said string
	Cause         error
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.Program, e.Cause, strings.TrimSpace(e.Said))
}

func (e *ExitError) Unwrap() error { return e.Cause }

// run executes a program without a shell.
func run(ctx context.Context, timeout time.Duration, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...) // #nosec G204 -- programs and arguments come from the checked node file
	var out, said bytes.Buffer
	command.Stdout, command.Stderr = &out, &said
	if err := command.Run(); err != nil {
		return out.String(), &ExitError{filepath.Base(program), said.String() + out.String(), err}
	}
	return out.String(), nil
}

func (d *Daemon) confDir() string {
	return filepath.Join(d.config.FRR.ConfDir, d.config.FRR.Pathspace)
}

func (d *Daemon) socketDir() string {
	return filepath.Join(d.config.FRR.RunDir, d.config.FRR.Pathspace)
}

func (d *Daemon) vtysh(ctx context.Context, commands ...string) (string, error) {
	args := []string{"--config_dir", d.confDir(), "--vty_socket", d.socketDir()}
	for _, command := range commands {
		args = append(args, "-c", command)
	}
	return run(ctx, vtyshTimeout, "vtysh", args...)
}

// Incarnation changes when bgpd restarts; 0 while it does not run.
func (d *Daemon) Incarnation() uint64 {
	info, err := os.Stat(filepath.Join(d.socketDir(), "bgpd.vty"))
	if err != nil {
		return 0
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Ino ^ uint64(stat.Ctim.Nano()) // #nosec G115 -- a fingerprint
	}
	return 0
}

// Version of a daemon, which it must be running to tell: a killed one leaves its socket behind.
func (d *Daemon) Version(ctx context.Context, daemon string) (string, error) {
	text, err := d.ask(ctx, daemon, "show version")
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line), err
}

// Ensure makes the rendered configuration the running one. It does nothing if it is already.
func (d *Daemon) Ensure(ctx context.Context) error {
	running, err := d.vtysh(ctx, "show running-config")
	if err != nil {
		return err
	}
	if d.applied != "" && running == d.applied {
		return nil
	}
	path := filepath.Join(d.confDir(), "frr.conf")
	if err := d.write(ctx, path); err != nil {
		return err
	}
	// The pathspace is in the directories already; --pathspace would append it again.
	reload := []string{filepath.Join(d.config.FRR.BinDir, "frr-reload.py"), "--reload", "--bindir", "/usr/bin", "--confdir", d.confDir(), "--rundir", d.socketDir(), "--vty_socket", d.socketDir(), path}
	if _, err := run(ctx, reloadTimeout, "python3", reload...); err != nil {
		return err
	}
	d.applied, err = d.vtysh(ctx, "show running-config")
	return err
}

// write has the real programs check the configuration before it replaces the file.
func (d *Daemon) write(ctx context.Context, path string) error {
	if err := Validate(ctx, d.config, d.confDir()); err != nil {
		return err
	}
	return replace(path, Render(d.config))
}

// replace writes a configuration in one step, for the directory's owner, which is FRR's user: who reads its configuration is of its
// group. One that is not the agent's, of a node where FRR had another task before, is kept beside it.
func replace(path, text string) error {
	before, err := os.ReadFile(path) // #nosec G304 -- the node file's
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err == nil && !strings.HasPrefix(string(before), header) {
		if err := os.Link(path, path+".before-railweave"); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	var owner syscall.Stat_t
	if err := syscall.Stat(filepath.Dir(path), &owner); err != nil {
		return fmt.Errorf("%s: %w", filepath.Dir(path), err)
	}
	candidate := path + ".candidate"
	if err := os.WriteFile(candidate, []byte(text), 0o640); err != nil {
		return err
	}
	if err := os.Chown(candidate, int(owner.Uid), int(owner.Gid)); err != nil {
		return errors.Join(err, os.Remove(candidate))
	}
	return os.Rename(candidate, path)
}

// Validate has vtysh check the whole configuration against all daemons' commands, and bgpd read its own part without running
// it. vtysh needs a directory with a vtysh.conf.
func Validate(ctx context.Context, config *nodeconfig.Config, confDir string) error {
	return validate(ctx, config.FRR.BinDir, confDir, Render(config), renderBGP(config))
}

func validate(ctx context.Context, binDir, confDir, whole, bgp string) error {
	dir, err := os.MkdirTemp("", "railweave-frr-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a few kilobytes in the temporary directory
	wholePath, bgpPath := filepath.Join(dir, "frr.conf"), filepath.Join(dir, "bgpd.conf")
	if err := errors.Join(os.WriteFile(wholePath, []byte(whole), 0o600), os.WriteFile(bgpPath, []byte(bgp), 0o600)); err != nil {
		return err
	}
	const refused = "the rendered FRR configuration was refused: %w"
	if _, err := run(ctx, vtyshTimeout, "vtysh", "--config_dir", confDir, "--dryrun", "--inputfile", wholePath); err != nil {
		return fmt.Errorf(refused, err)
	}
	said, err := run(ctx, vtyshTimeout, filepath.Join(binDir, "bgpd"), "--dryrun", "--bgp_port", "0", "--config_file", bgpPath, "--skip_runas", "--log", "stdout")
	if err != nil {
		return fmt.Errorf(refused, err)
	}
	// bgpd only logs what it does not understand, and exits with 0.
	for line := range strings.Lines(said) {
		if strings.Contains(line, "No such command") || strings.Contains(line, "on config line") {
			return fmt.Errorf(refused, errors.New("bgpd: "+strings.TrimSpace(line)))
		}
	}
	return nil
}

type summary map[string]struct { // by address family
	Peers map[string]struct {
		State       string `json:"state"`
		PfxRcd      int    `json:"pfxRcd"`
		Description string `json:"desc"`
	} `json:"peers"`
}

type neighborState map[string]struct {
	Address string `json:"bgpNeighborAddr"`
	State   string `json:"bgpState"`
}

type bfdPeer struct {
	Peer      string `json:"peer"`
	Interface string `json:"interface"`
	Status    string `json:"status"`
}

// Sessions reads the state of every rail.
func (d *Daemon) Sessions(ctx context.Context) (map[string]Session, error) {
	text, err := d.ask(ctx, "bgpd", "show bgp summary json")
	if err != nil {
		return nil, err
	}
	details, err := d.ask(ctx, "bgpd", "show bgp neighbors json")
	if err != nil {
		return nil, err
	}
	bfd := "[]"
	if d.config.FRR.BFD {
		if bfd, err = d.ask(ctx, "bfdd", "show bfd peers json"); err != nil {
			return nil, err
		}
	}
	sessions, err := parseSessions(d.config, text, details, bfd)
	if err != nil {
		return nil, err
	}
	if clients, err := d.ask(ctx, "zebra", "show zebra client summary"); err != nil || !hasBGP(clients) {
		for name, session := range sessions {
			session.ZebraAway = true
			sessions[name] = session
		}
	}
	return sessions, nil
}

func parseSessions(config *nodeconfig.Config, summaryJSON, neighborsJSON, bfdJSON string) (map[string]Session, error) {
	var families summary
	var states neighborState
	var bfd []bfdPeer
	for what, pair := range map[string]struct {
		text string
		into any
	}{"show bgp summary": {summaryJSON, &families}, "show bgp neighbors": {neighborsJSON, &states}, "show bfd peers": {bfdJSON, &bfd}} {
		if err := json.Unmarshal([]byte(pair.text), pair.into); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	sessions := map[string]Session{}
	for i := range config.Rails {
		rail := &config.Rails[i]
		session := Session{Established: true}
		for _, n := range neighbors(config) {
			if n.rail != rail {
				continue
			}
			state := states[n.name]
			session.Established = session.Established && state.State == "Established"
			where := state.Address
			if !rail.Peer.Unnumbered {
				where = n.name
			}
			if address, err := netip.ParseAddr(where); err == nil && (!session.Peer.IsValid() || address.Is4()) {
				if address.IsLinkLocalUnicast() && address.Is6() {
					address = address.WithZone(rail.Bridge)
				}
				session.Peer = address
			}
			for _, carried := range families {
				received := carried.Peers[n.name].PfxRcd
				session.Prefixes += received
				session.OverLimit = session.OverLimit || received > config.FRR.MaximumPrefixes
			}
			if config.FRR.BFD {
				session.BFDDown = session.BFDDown || !bfdUp(bfd, rail, session.Peer)
			}
		}
		sessions[rail.Name] = session
	}
	return sessions, nil
}

func bfdUp(peers []bfdPeer, rail *nodeconfig.Rail, leaf netip.Addr) bool {
	for _, peer := range peers {
		if peer.Status == "up" && (peer.Interface == rail.Bridge || peer.Peer == leaf.WithZone("").String()) {
			return true
		}
	}
	return false
}
