package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
)

var plugins = []string{"railweave-ovs", "railweave-frr"}

// install copies the plugins by rename, so that a runtime that calls one meanwhile finds the old or the new, never half.
func install(_ context.Context, args []string) error {
	set := flag.NewFlagSet("install", flag.ContinueOnError)
	from := set.String("from", "/usr/libexec/railweave", "directory with the plugins")
	to := set.String("to", "/opt/cni/bin", "the runtime's plugin directory")
	if err := set.Parse(args); err != nil {
		return err
	}
	if err := noArguments(set); err != nil {
		return err
	}
	for _, name := range plugins {
		if err := installFile(filepath.Join(*from, name), filepath.Join(*to, name)); err != nil {
			return err
		}
	}
	return nil
}

func installFile(from, to string) (err error) {
	source, err := os.Open(from) // #nosec G304 -- named by the operator
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // opened for reading
	target, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+"-")
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if err == nil {
		err = target.Chmod(0o755) // a program
	}
	if err = errors.Join(err, target.Sync(), target.Close()); err == nil {
		err = os.Rename(target.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(target.Name()))
	}
	return nil
}
