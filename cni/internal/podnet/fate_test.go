package podnet

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFate: only where namespaces are seen does a path at which none is say that one has ended; else the machine's processes do.
func TestFate(t *testing.T) {
	own, err := Inode("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	link := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/proc/self/ns/net", path); err != nil { // as good as a mount: it is opened
			t.Fatal(err)
		}
	}
	empty, populated, proc := t.TempDir(), t.TempDir(), t.TempDir()
	link(filepath.Join(populated, "other"))
	link(filepath.Join(proc, "123", "ns", "net")) // a process in this namespace
	if err := os.WriteFile(filepath.Join(empty, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const another = 1 // no namespace has this inode
	for _, test := range []struct {
		name      string
		path      string
		inode     uint64
		everybody bool
		want      Fate
	}{
		{"at its path", filepath.Join(populated, "other"), own, false, Lives},
		{"whichever it is", filepath.Join(populated, "other"), 0, false, Lives},
		{"another one at its path", filepath.Join(populated, "other"), another, false, Ended},
		{"gone from among others", filepath.Join(populated, "gone"), own, false, Ended},
		{"whichever it was, gone from among others", filepath.Join(populated, "gone"), 0, false, Ended},
		{"gone from an empty directory, processes not seen", filepath.Join(empty, "gone"), another, false, Unclear},
		{"gone from an empty directory, a process in it", filepath.Join(empty, "gone"), own, true, Unclear},
		{"gone from an empty directory, no process in it", filepath.Join(empty, "gone"), another, true, Ended},
		{"whichever it was, gone from an empty directory", filepath.Join(empty, "gone"), 0, true, Unclear},
		{"a plain file, where propagation is missing, and a process in it", filepath.Join(empty, "plain"), own, true, Unclear},
		{"no such directory, processes not seen", filepath.Join(empty, "none", "gone"), another, false, Unclear},
		{"no such directory, no process in it", filepath.Join(empty, "none", "gone"), another, true, Ended},
	} {
		witness := &Witness{proc: proc, everybody: test.everybody}
		for range 2 { // what was looked at once is remembered for a moment
			if got := witness.Fate(test.path, test.inode); got != test.want {
				t.Errorf("%s: %d, want %d", test.name, got, test.want)
			}
		}
	}
}
