package main

import (
	"context"
	"errors"
)

func preflightCommand(context.Context, []string) error { return errors.New("not yet") }
