package podnet

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Fate of a namespace.
type Fate int

// The fates. Unclear: it is not at its path, but that may be because the agent does not see what the runtime sees there.
const (
	Lives Fate = iota
	Ended
	Unclear
)

// Witness tells namespaces that have ended from such as are not seen. With another directory mounted than the runtime's every path
// is one at which nothing is, and who took that for death would take all pods of a node off their rails.
type Witness struct {
	proc string
	// everybody: the processes of the whole machine are seen in proc.
	everybody bool

	mutex     sync.Mutex
	looked    time.Time
	populated map[string]bool // directories, by whether a network namespace is in them
	inhabited map[uint64]bool // network namespaces in which a process is; nil: not asked yet
}

// initialPIDNamespace is the inode that every kernel gives it (PROC_PID_INIT_INO).
const initialPIDNamespace = 0xEFFFFFFC

// NewWitness looks at this machine.
func NewWitness() *Witness {
	inode, err := inodeOf("/proc/self/ns/pid")
	return &Witness{proc: "/proc", everybody: err == nil && inode == initialPIDNamespace}
}

// lookAgain: a sweep asks for all attachments at once, of which each would read all of /proc.
const lookAgain = time.Second

// Fate of the namespace that was at a path; inode 0: it is not known which it was.
func (w *Witness) Fate(path string, inode uint64) Fate {
	switch found, err := Inode(path); {
	case err == nil && inode != 0 && found != inode:
		return Ended
	case err == nil, !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrNotNamespace): // in doubt as Alive
		return Lives
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if time.Since(w.looked) > lookAgain {
		w.looked, w.populated, w.inhabited = time.Now(), map[string]bool{}, nil
	}
	if w.sees(filepath.Dir(path)) {
		return Ended
	}
	if inode == 0 || !w.everybody {
		return Unclear
	}
	if w.inhabited == nil {
		w.inhabited = inhabited(w.proc)
	}
	if w.inhabited[inode] {
		return Unclear
	}
	return Ended // a pod has at least the process that holds its namespaces
}

// sees tells whether any network namespace is in a directory: then it is the runtime's.
func (w *Witness) sees(dir string) bool {
	if is, known := w.populated[dir]; known {
		return is
	}
	w.populated[dir] = false
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if _, err := Inode(filepath.Join(dir, entry.Name())); err == nil {
			w.populated[dir] = true
			break
		}
	}
	return w.populated[dir]
}

// inhabited are the network namespaces in which a process is.
func inhabited(proc string) map[uint64]bool {
	found := map[uint64]bool{}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return found
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		if inode, err := inodeOf(filepath.Join(proc, entry.Name(), "ns/net")); err == nil {
			found[inode] = true
		}
	}
	return found
}

func inodeOf(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, os.ErrInvalid
	}
	return stat.Ino, nil
}
