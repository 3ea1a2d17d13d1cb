package frr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"
)

// answerEnd comes before the return code that ends each of a daemon's answers (FRR, lib/vty.c).
var answerEnd = []byte{0, 0, 0}

// ask has one daemon run a command that only shows something, over the socket that vtysh uses. vtysh itself takes 35 ms of
// processor time to start, which the polls would spend several times every 2 s.
func (d *Daemon) ask(ctx context.Context, daemon, command string) (string, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", filepath.Join(d.socketDir(), daemon+".vty"))
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }() // nothing is lost: the answer was read or failed
	deadline := time.Now().Add(vtyshTimeout)
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(deadline) {
		deadline = sooner
	}
	if err := connection.SetDeadline(deadline); err != nil {
		return "", err
	}
	// As vtysh does: some commands need it.
	if _, err := exchange(connection, "enable"); err != nil {
		return "", fmt.Errorf("%s: enable: %w", daemon, errors.Join(err, ctx.Err()))
	}
	answer, err := exchange(connection, command)
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", daemon, command, errors.Join(err, ctx.Err()))
	}
	return answer, nil
}

// exchange sends one command and reads its answer.
func exchange(connection net.Conn, command string) (string, error) {
	if _, err := connection.Write(append([]byte(command), 0)); err != nil {
		return "", err
	}
	var answer []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := connection.Read(buffer)
		answer = append(answer, buffer[:n]...)
		if text, code, complete := cutAnswer(answer); complete {
			if code != 0 {
				return "", fmt.Errorf("refused with code %d: %s", code, bytes.TrimSpace(text))
			}
			return string(text), nil
		}
		if err != nil {
			return "", fmt.Errorf("the answer is incomplete: %w", err)
		}
	}
}

// cutAnswer splits a complete answer into text and return code. Text has no NUL.
func cutAnswer(answer []byte) (text []byte, code byte, complete bool) {
	at := bytes.Index(answer, answerEnd)
	if at < 0 || len(answer) < at+len(answerEnd)+1 {
		return nil, 0, false
	}
	return answer[:at], answer[at+len(answerEnd)], true
}
