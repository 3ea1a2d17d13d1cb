// Package plugins builds the programs that the end-to-end tests run: this module's own, and the published CNI plugins
// they are chained with. Each of the latter has a module of its own below this directory, so that its requirements
// stay out of ours.
package plugins

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// module is the import path of the module whose directory ModuleDir looks for.
const module = "module github.com/railweave/railweave/cni\n"

// external is one published program: the directory of its module below this one, its package, and its file name.
type external struct{ dir, pkg, name string }

var (
	chained = []external{
		{"ovs-cni", "github.com/k8snetworkplumbingwg/ovs-cni/cmd/plugin", "ovs"},
		{"reference", "github.com/containernetworking/plugins/plugins/ipam/host-local", "host-local"},
		{"reference", "github.com/containernetworking/plugins/plugins/main/bridge", "bridge"},
	}
	multus     = external{"multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus", "multus"}
	kubernetes = []external{multus,
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"},
		{"helm", "helm.sh/helm/v3/cmd/helm", "helm"}}
)

// ModuleDir is the directory of this module, found from the working directory upwards.
func ModuleDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), module) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the cni module: run from cni/ or below")
		}
		dir = parent
	}
}

// Build builds this module's programs, ovs-cni, host-local and bridge, and returns the directory they are in. Go's
// build cache makes it a matter of a second or two when nothing has changed.
func Build() (string, error) { return build(chained) }

// BuildMultus is Build with Multus.
func BuildMultus() (string, error) { return build(append(chained[:len(chained):len(chained)], multus)) }

// BuildKubernetes is Build with Multus, kube-apiserver and Helm: minutes the first time.
func BuildKubernetes() (string, error) {
	return build(append(chained[:len(chained):len(chained)], kubernetes...))
}

func build(wanted []external) (string, error) {
	root, err := ModuleDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	// Two builds at once would write the same files while the other's tests run them.
	lock, err := os.OpenFile(filepath.Join(bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if err := goBuild(root, bin+string(filepath.Separator), "./cmd/..."); err != nil {
		return "", err
	}
	for _, e := range wanted {
		dir := filepath.Join(root, "e2e", "plugins", e.dir)
		if err := goBuild(dir, filepath.Join(bin, e.name), e.pkg); err != nil {
			return "", err
		}
	}
	return bin, nil
}

func goBuild(dir, out, pkg string) error {
	cmd := exec.Command("go", "build", "-o", out, pkg)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}
