package testnet

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// threads is a process whose first thread has ended, and another has not.
const threads = `
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
`

func TestAProcessIsAliveAsLongAsAnyThreadOfItIs(t *testing.T) {
	cmd := exec.Command("python3", "-c", threads)
	if err := cmd.Start(); err != nil {
		t.Skipf("no python3: %v", err)
	}
	pid := cmd.Process.Pid
	firstHasEnded := waitUntil(answerLimit, time.Millisecond, func() bool {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return strings.Contains(string(stat), ") Z ")
	})
	living := alive(pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	ended := waitGone([]int{pid}, answerLimit) // nobody has waited for it yet: it is a zombie
	_ = cmd.Wait()
	if !firstHasEnded || !living || !ended {
		t.Errorf("first thread has ended %v, alive then %v, gone when killed %v; expected true", firstHasEnded, living, ended)
	}
}
