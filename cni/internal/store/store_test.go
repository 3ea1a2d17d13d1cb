package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/durable"
)

func example(container string) *attachment.Attachment {
	return &attachment.Attachment{
		Key: attachment.Key{Network: "rail0", ContainerID: container, Interface: "net1"}, Netns: "/run/netns/" + container, NetnsInode: 4026532000,
		BootID: "boot", Rail: "rail0", Pod: attachment.Pod{Namespace: "team-a", Name: "pod", UID: "uid"}, Port: "veth1", MAC: "0a:58:0a:40:00:05",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.64.0.5/16"), netip.MustParsePrefix("fd64::5/64")}, Announced: true,
		PortIDs: map[string]string{"owner": "ovs-cni"},
	}
}

func TestRoundTripAndOrder(t *testing.T) {
	dir := t.TempDir()
	state := &State{BootID: "boot", Generation: 7, Attachments: []*attachment.Attachment{example("b"), example("a")}}
	if err := Write(dir, state); err != nil {
		t.Fatal(err)
	}
	read, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if read.Generation != 7 || len(read.Attachments) != 2 || read.Attachments[0].ContainerID != "a" || !reflect.DeepEqual(read.Attachments[1], example("b")) {
		t.Errorf("%+v", read)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestMissingIsEmpty(t *testing.T) {
	state, err := Open(filepath.Join(t.TempDir(), "new"))
	if err != nil || len(state.Attachments) != 0 {
		t.Errorf("%+v, %v", state, err)
	}
}

// TestAnyDamageIsNoticed: a byte changed anywhere, or the end cut off, is damage or leaves the contents as they were (blanks).
func TestAnyDamageIsNoticed(t *testing.T) {
	data, err := Encode(&State{BootID: "boot", Generation: 7, Attachments: []*attachment.Attachment{example("a")}})
	if err != nil {
		t.Fatal(err)
	}
	original, err := Decode("good", data)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	check := func(what string, at int, damaged []byte) {
		state, err := Decode("damaged", damaged)
		var typed *DamagedError
		if err == nil && !reflect.DeepEqual(state, original) {
			t.Fatalf("%s at %d went unnoticed", what, at)
		}
		if err != nil && !errors.As(err, &typed) {
			t.Fatalf("%s at %d: untyped %v", what, at, err)
		}
	}
	for at := range data {
		damaged := bytes.Clone(data)
		damaged[at] ^= byte(1 + random.IntN(255))
		check("a changed byte", at, damaged)
		check("a cut", at, data[:at])
	}
}

func TestDamagedGoesIntoQuarantine(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, &State{Attachments: []*attachment.Attachment{example("a")}}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fileName)
	if err := os.WriteFile(path, []byte(`{"checksum":"sha256:00","body":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	state, err := Open(dir)
	var damaged *DamagedError
	if !errors.As(err, &damaged) || len(state.Attachments) != 0 {
		t.Fatalf("%+v, %v", state, err)
	}
	aside, err := filepath.Glob(filepath.Join(dir, quarantineDir, "store-*.json"))
	if err != nil || len(aside) != 1 {
		t.Errorf("quarantine: %v, %v", aside, err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the damaged store is still in place: %v", err)
	}
}

// TestLeftovers of writes that were killed go when the store is opened; one that may be under way, and what is not ours, stays.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	if err := Bury(dir, Tombstone{Verb: Detach, Key: attachment.Key{Network: "n", ContainerID: "c", Interface: "net1"}}); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * durable.Unfinished)
	for name, stays := range map[string]bool{
		".store.json-1": false, ".tenancy.json-2": false, "tombstones/.ab.json-3": false,
		".store.json-4": true, "notes.json-5": true, ".other": true,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name != ".store.json-4" {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			if _, err := os.Lstat(path); (err == nil) != stays {
				t.Errorf("%s: stays %t, %v", name, stays, err)
			}
		}()
	}
	if _, err := Open(dir); err != nil {
		t.Fatal(err)
	}
	if found, _, err := Tombstones(dir); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
}

// TestReadOnly: a disk that has become read-only, with leftovers on it, is read.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Skipf("no file system may be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	left, old := filepath.Join(dir, ".store.json-1"), time.Now().Add(-2*durable.Unfinished)
	if err := errors.Join(Write(dir, &State{BootID: "boot", Attachments: []*attachment.Attachment{example("a")}}), os.WriteFile(left, nil, 0o600), os.Chtimes(left, old, old),
		unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	if state, err := Open(dir); err != nil || len(state.Attachments) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
}

func TestTombstones(t *testing.T) {
	dir := t.TempDir()
	first := Tombstone{Detach, attachment.Key{Network: "n", ContainerID: "c", Interface: "net1"}}
	second := Tombstone{Withdraw, first.Key}
	for _, tombstone := range []Tombstone{first, second, first} {
		if err := Bury(dir, tombstone); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, count int, damage bool) []Tombstone {
		t.Helper()
		found, damaged, err := Tombstones(dir)
		if err != nil || len(found) != count || (damaged != nil) != damage {
			t.Fatalf("%s: %v, %v, %v", when, found, damaged, err)
		}
		return found
	}
	expect("buried", 2, false)
	if err := os.WriteFile(filepath.Join(dir, tombstoneDir, "zz.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("beside a damaged one", 2, true)
	expect("after quarantine", 2, false)
	for range 2 {
		if err := Exhume(dir, first); err != nil {
			t.Fatal(err)
		}
	}
	if found := expect("exhumed", 1, false); found[0] != second || Buried(dir, first) || !Buried(dir, second) {
		t.Errorf("%v", found)
	}
	other := attachment.Key{Network: "n", ContainerID: "c", Interface: "net2"}
	if ended := Ended(dir, []attachment.Key{first.Key, other}); len(ended) != 1 || !ended[first.Key] {
		t.Errorf("ended: %v", ended)
	}
	// A directory that cannot be read is not an empty one.
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, tombstoneDir)), os.WriteFile(filepath.Join(dir, tombstoneDir), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if found, _, err := Tombstones(dir); err == nil {
		t.Errorf("unreadable: %v", found)
	}
	if ended := Ended(dir, []attachment.Key{first.Key}); len(ended) != 0 {
		t.Errorf("unreadable, but ended: %v", ended)
	}
}

// FuzzDecode: what is accepted is well-formed and survives a round trip.
func FuzzDecode(f *testing.F) {
	good, err := Encode(&State{BootID: "boot", Generation: 7, Attachments: []*attachment.Attachment{example("a"), example("b")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, true)
	f.Add([]byte(`{"version":1,"attachments":[null]}`), true)
	f.Add([]byte(`{}`), false)
	f.Fuzz(func(t *testing.T, data []byte, resealed bool) {
		if resealed { // else the fuzzer would have to find a checksum
			data = append(append([]byte(`{"checksum":"`+checksum(data)+`","body":`), data...), '}')
		}
		state, err := Decode("fuzz", data)
		if err != nil {
			return
		}
		again, err := Encode(state)
		if err != nil {
			t.Fatalf("accepted but not encodable: %v", err)
		}
		if _, err := Decode("again", again); err != nil {
			t.Fatalf("accepted, encoded and refused: %v", err)
		}
	})
}

// FuzzDecodeTombstone: what is accepted names an attachment.
func FuzzDecodeTombstone(f *testing.F) {
	f.Add([]byte(`{"verb":"detach","network":"n","containerID":"c","interface":"net1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = append(append([]byte(`{"checksum":"`+checksum(data)+`","body":`), data...), '}')
		if tombstone, err := DecodeTombstone("fuzz", data); err == nil && tombstone.Key.Validate() != nil {
			t.Errorf("accepted %+v", tombstone)
		}
	})
}
