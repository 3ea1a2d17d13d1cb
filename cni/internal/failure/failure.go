// Package failure holds the one error type that crosses the contract: a reason for programs, and for people what was
// wrong with which subject and what to do. It knows the gRPC code and the CNI code of each reason.
package failure

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
)

// Error is a failure with a reason of the contract.
type Error struct {
	Reason  nodev1.Reason
	Subject string // a port, an address, a rail
	Problem string // what was found, and what was expected
	Remedy  string // what to do
	Cause   error
}

// New makes an Error; problem may be a format.
func New(reason nodev1.Reason, subject, remedy, problem string, args ...any) *Error {
	return &Error{Reason: reason, Subject: subject, Remedy: remedy, Problem: fmt.Sprintf(problem, args...)}
}

// Because adds the underlying error.
func (e *Error) Because(cause error) *Error {
	e.Cause = cause
	return e
}

func (e *Error) Error() string {
	text := e.Problem
	if e.Subject != "" {
		text = e.Subject + ": " + text
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	if e.Remedy != "" {
		text += " (" + e.Remedy + ")"
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }

// GRPCStatus lets a gRPC server send the error with its Failure.
func (e *Error) GRPCStatus() *status.Status {
	plain := status.New(Codes(e.Reason).GRPC, e.Error())
	detailed, err := plain.WithDetails(&nodev1.Failure{Reason: e.Reason, Subject: e.Subject, Remedy: e.Remedy})
	if err != nil {
		return plain
	}
	return detailed
}

// ReasonOf finds the reason in an error, on either side of the connection; REASON_UNSPECIFIED if it has none.
func ReasonOf(err error) nodev1.Reason {
	var own *Error
	if errors.As(err, &own) {
		return own.Reason
	}
	if received, ok := status.FromError(err); ok {
		for _, detail := range received.Details() {
			if failure, ok := detail.(*nodev1.Failure); ok {
				return failure.Reason
			}
		}
	}
	return nodev1.Reason_REASON_UNSPECIFIED
}

// Pair is how a reason reads in the two protocols.
type Pair struct {
	GRPC codes.Code
	CNI  uint
}

// CNI error codes: below 100 the specification's, from 100 ours.
const (
	CNIIncompatible = 1
	CNIEnvironment  = 4
	CNIDecode       = 6
	CNIConfig       = 7
	CNITryAgain     = 11
	CNIUnavailable  = 50
	CNILimited      = 51
	CNIInternal     = 999
	CNIStore        = 112
	cniAddress      = 101
	cniAddressInUse = 102
	cniMAC          = 103
	cniPort         = 104
	cniNetns        = 105
	cniPod          = 106
	cniDiffers      = 107
	cniUnknown      = 108
	cniDatapath     = 109
	cniPodSetup     = 110
	cniRoute        = 111
	cniRDMA         = 113
	cniDevice       = 114
)

var pairs = map[nodev1.Reason]Pair{
	nodev1.Reason_REQUEST_MALFORMED:  {codes.InvalidArgument, CNIConfig},
	nodev1.Reason_RAIL_UNKNOWN:       {codes.InvalidArgument, CNIConfig},
	nodev1.Reason_ADDRESS_REFUSED:    {codes.InvalidArgument, cniAddress},
	nodev1.Reason_ADDRESS_IN_USE:     {codes.AlreadyExists, cniAddressInUse},
	nodev1.Reason_MAC_REFUSED:        {codes.InvalidArgument, cniMAC},
	nodev1.Reason_MAC_IN_USE:         {codes.AlreadyExists, cniMAC},
	nodev1.Reason_PORT_MISSING:       {codes.NotFound, cniPort},
	nodev1.Reason_PORT_IN_USE:        {codes.AlreadyExists, cniPort},
	nodev1.Reason_NETNS_MISSING:      {codes.NotFound, cniNetns},
	nodev1.Reason_INTERFACE_MISSING:  {codes.NotFound, cniNetns},
	nodev1.Reason_POD_UNKNOWN:        {codes.NotFound, cniPod},
	nodev1.Reason_NAMESPACE_UNKNOWN:  {codes.NotFound, cniPod},
	nodev1.Reason_ATTACHMENT_UNKNOWN: {codes.NotFound, cniUnknown},
	nodev1.Reason_ATTACHMENT_DIFFERS: {codes.AlreadyExists, cniDiffers},
	nodev1.Reason_BRIDGE_MISSING:     {codes.FailedPrecondition, cniPort},
	nodev1.Reason_BRIDGE_FOREIGN:     {codes.FailedPrecondition, cniPort},
	nodev1.Reason_DATAPATH_FAILED:    {codes.Internal, cniDatapath},
	nodev1.Reason_DATAPATH_DIFFERS:   {codes.FailedPrecondition, cniDatapath},
	nodev1.Reason_POD_SETUP_FAILED:   {codes.Internal, cniPodSetup},
	nodev1.Reason_POD_DIFFERS:        {codes.FailedPrecondition, cniPodSetup},
	nodev1.Reason_ROUTE_FAILED:       {codes.Internal, cniRoute},
	nodev1.Reason_ROUTE_DIFFERS:      {codes.FailedPrecondition, cniRoute},
	nodev1.Reason_STORE_FAILED:       {codes.Internal, CNIStore},
	nodev1.Reason_NOT_READY:          {codes.Unavailable, CNITryAgain},
	nodev1.Reason_RAIL_DOWN:          {codes.Unavailable, CNITryAgain},
	nodev1.Reason_RDMA_NOT_ISOLATED:  {codes.FailedPrecondition, cniRDMA},
	nodev1.Reason_RDMA_NOT_READY:     {codes.Unavailable, CNITryAgain},
	nodev1.Reason_TENANCY_STALE:      {codes.Unavailable, CNITryAgain},
	nodev1.Reason_DEVICE_UNKNOWN:     {codes.NotFound, cniDevice},
}

// Codes of a reason; Internal and the generic CNI code for one that is not in the contract.
func Codes(reason nodev1.Reason) Pair {
	if pair, ok := pairs[reason]; ok {
		return pair
	}
	return Pair{codes.Internal, CNIInternal}
}

// StatusCode is the CNI code with which the verb STATUS answers a reason: 51 where pods that run may be cut off too.
func StatusCode(reason nodev1.Reason) uint {
	switch reason {
	case nodev1.Reason_RAIL_DOWN, nodev1.Reason_TENANCY_STALE:
		return CNILimited
	case nodev1.Reason_RAIL_UNKNOWN, nodev1.Reason_REQUEST_MALFORMED:
		return CNIConfig
	default:
		return CNIUnavailable
	}
}
