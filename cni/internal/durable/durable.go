// Package durable replaces files so that a reader, a kill and a power cut find the old one or the new one, never half.
package durable

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Replace puts a file of that mode in the place of the one at path. A kill may leave a temporary file, which Tidy removes later.
func Replace(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	temporary, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temporary.Name()))
		}
	}()
	err = write(temporary)
	if err == nil {
		err = temporary.Chmod(mode)
	}
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err = os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// SyncDir makes what was created, renamed and removed in a directory last.
func SyncDir(dir string) error {
	handle, err := os.Open(dir) // #nosec G304 -- the caller's own
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}

// Unfinished is how long a file may be under way: a write takes milliseconds, a minute on a disk that hangs. What a kill has left is older.
const Unfinished = time.Hour

// Tidy removes the temporary files of killed writers from a directory: those whose names match a pattern of filepath.Match. Others may be
// writing now. What cannot be removed, as on a disk that has become read-only, stays: it is in nobody's way.
func Tidy(dir, pattern string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if ours, _ := filepath.Match(pattern, entry.Name()); !ours { // fails for a bad pattern alone
			continue
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < Unfinished {
			continue // finished meanwhile, or not ours
		}
		_ = os.Remove(filepath.Join(dir, entry.Name()))
	}
}
