// Command stall runs a command on a machine that stands still again and again: processes of the command's tree, daemons that left
// it included, are stopped (SIGSTOP) for seconds, one by one and now and then all at once, as on a host that has no processor to
// give. What passes under it does not depend on how fast anything is.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// marker is the variable by which processes of the tree are known: children inherit it, and daemons that detach keep it.
const marker = "RAILWEAVE_STALL"

func main() {
	s := staller{stopped: map[int]bool{}}
	flag.DurationVar(&s.shortest, "shortest", 500*time.Millisecond, "shortest stop")
	flag.DurationVar(&s.longest, "longest", 6*time.Second, "longest stop")
	share := flag.Float64("share", 0.1, "share of its time for which a process is stopped by itself, below 1")
	every := flag.Duration("everything-every", 20*time.Second, "mean time between stops of the whole tree; 0: never")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the random choices")
	flag.Parse()
	if flag.NArg() == 0 || s.shortest <= 0 || s.longest < s.shortest || *share < 0 || *share >= 1 || *every < 0 {
		fmt.Fprintln(os.Stderr, "usage: stall [flags] COMMAND [ARGUMENT...]")
		flag.PrintDefaults()
		os.Exit(2)
	}
	s.mark = fmt.Appendf(nil, "%s=%d-%d", marker, os.Getpid(), *seed)
	code, err := s.run(*seed, *share, *every, flag.Args())
	fmt.Fprintf(os.Stderr, "stall: processes stopped %d times by themselves, for %v in all; everything %d times, for %v; seed %d\n", s.single.times,
		s.single.took.Round(time.Second), s.whole.times, s.whole.took.Round(time.Second), *seed)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stall:", err)
		code = 1
	}
	os.Exit(code)
}

// tally counts stops and their length.
type tally struct {
	times int
	took  time.Duration
}

type staller struct {
	shortest, longest time.Duration
	mark              []byte // the tree's entry in the environment

	mu            sync.Mutex
	stopped       map[int]bool // by themselves
	single, whole tally
}

// run runs the command under stops and returns its exit status.
func (s *staller) run(seed uint64, share float64, every time.Duration, command []string) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), string(s.mark))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	done := make(chan struct{})
	var workers sync.WaitGroup
	workers.Go(func() { s.stopOnes(rand.New(rand.NewPCG(seed, 0)), share, done) })
	if every > 0 {
		workers.Go(func() { s.stopEverything(rand.New(rand.NewPCG(seed, 1)), every, done) })
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	select {
	case err = <-ended:
		close(done)
		workers.Wait()
	case sig := <-signals:
		close(done)
		workers.Wait()
		_ = cmd.Process.Signal(sig)
		err = <-ended
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// stopOnes stops processes by themselves until done is closed; what it stopped goes on when it returns.
func (s *staller) stopOnes(random *rand.Rand, share float64, done <-chan struct{}) {
	const tick = 200 * time.Millisecond
	// A process that runs is stopped at such a rate that it is stopped for the wanted share of its time.
	chance := share / (1 - share) * float64(tick) / (float64(s.shortest+s.longest) / 2)
	var stops sync.WaitGroup
	defer stops.Wait()
	for !wait(tick, done) {
		for _, pid := range s.tree() {
			if random.Float64() < chance && s.claim(pid) {
				length := s.length(random)
				stops.Go(func() { s.stop(pid, length, done) })
			}
		}
	}
}

// claim takes a process that is not stopped.
func (s *staller) claim(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped[pid] {
		return false
	}
	s.stopped[pid] = true
	return true
}

// stop stops a process for a time, or until done is closed.
func (s *staller) stop(pid int, length time.Duration, done <-chan struct{}) {
	s.signal(pid, unix.SIGSTOP)
	wait(length, done)
	s.signal(pid, unix.SIGCONT)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.stopped, pid)
	s.single.times, s.single.took = s.single.times+1, s.single.took+length
}

// stopEverything stops the whole tree now and then until done is closed.
func (s *staller) stopEverything(random *rand.Rand, every time.Duration, done <-chan struct{}) {
	for {
		if wait(time.Duration(random.ExpFloat64()*float64(every)), done) {
			return
		}
		length, tree := s.length(random), s.tree()
		for _, pid := range tree {
			s.signal(pid, unix.SIGSTOP)
		}
		over := wait(length, done)
		for _, pid := range tree {
			s.signal(pid, unix.SIGCONT)
		}
		s.mu.Lock()
		s.whole.times, s.whole.took = s.whole.times+1, s.whole.took+length
		s.mu.Unlock()
		if over {
			return
		}
	}
}

func (s *staller) length(random *rand.Rand) time.Duration {
	return s.shortest + time.Duration(random.Int64N(int64(s.longest-s.shortest)+1))
}

// tree lists the processes that carry the mark.
func (s *staller) tree() []int {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err == nil && s.carries(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *staller) carries(pid int) bool {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for _, entry := range bytes.Split(environment, []byte{0}) {
		if bytes.Equal(entry, s.mark) {
			return true
		}
	}
	return false
}

// signal signals a process of the tree. The descriptor holds on to it while it is looked at: its number may be another's by now.
func (s *staller) signal(pid int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended
	}
	defer func() { _ = unix.Close(fd) }()
	if s.carries(pid) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// wait waits for a time or until done is closed, and returns whether it is.
func wait(d time.Duration, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
