package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"golang.org/x/sys/unix"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
)

// Listen makes the socket in a directory only root can enter.
func Listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := closeDirectory(dir, filepath.Base(path)); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	if _, err := net.DialTimeout("unix", path, time.Second); err == nil {
		return nil, fmt.Errorf("socket %s: another agent is serving on it", path)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, fmt.Errorf("socket %s: there is something else, which is left alone: %s", path, info.Mode())
	default:
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return net.Listen("unix", path)
}

// closeDirectory lets root alone enter the socket's directory. One in which others have files, /run say, is theirs and stays open.
func closeDirectory(dir, socket string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Getuid() {
		return fmt.Errorf("its directory %s belongs to user %d, who could put another socket there: name a directory of its own", dir, owner)
	}
	if info.Mode().Perm() == 0o700 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() != socket {
			return fmt.Errorf("its directory %s is to be closed to all but root, but %s is in it, too: name a directory of its own", dir, entry.Name())
		}
	}
	return os.Chmod(dir, 0o700) // #nosec G302 -- entered by root alone
}

// peerCredentials admits connections of root and of the agent's own user, as the kernel names them.
type peerCredentials struct{}

func (peerCredentials) ServerHandshake(connection net.Conn) (net.Conn, credentials.AuthInfo, error) {
	unixConnection, ok := connection.(syscall.Conn)
	if !ok {
		return nil, nil, errors.New("not a unix socket")
	}
	raw, err := unixConnection.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return nil, nil, err
	}
	if peerErr != nil {
		return nil, nil, peerErr
	}
	if peer.Uid != 0 && int(peer.Uid) != os.Getuid() {
		return nil, nil, fmt.Errorf("process %d of user %d may not call the node agent", peer.Pid, peer.Uid)
	}
	return connection, authInfo{}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("for servers only")
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "peercred"}
}
func (c peerCredentials) Clone() credentials.TransportCredentials { return c }
func (peerCredentials) OverrideServerName(string) error           { return nil }

type authInfo struct{}

func (authInfo) AuthType() string { return "peercred" }

// server translates between the contract's messages and the agent.
type server struct {
	nodev1.UnimplementedNodeServer
	agent *Agent
}

// NewServer makes the gRPC server of an agent.
func NewServer(agent *Agent) *grpc.Server {
	s := grpc.NewServer(grpc.Creds(peerCredentials{}), grpc.UnaryInterceptor(agent.intercept))
	nodev1.RegisterNodeServer(s, &server{agent: agent})
	return s
}

// intercept keeps requests away until the agent is ready, and measures and logs them.
func (a *Agent) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	began := time.Now()
	var response any
	var err error
	if a.Ready() {
		response, err = handler(ctx, request)
	} else {
		err = failure.New(nodev1.Reason_NOT_READY, "railweave-node", "it is starting; the runtime tries again", "the first reconciliation is not done")
	}
	err = toStatus(err)
	took := time.Since(began)
	a.Metrics.Latency.WithLabelValues(method, status.Code(err).String()).Observe(took.Seconds())
	switch {
	case method == "Status": // asked again and again; the node's condition tells it once
		a.Log.Debug("request", "method", method, "took", took, "error", err)
	case err != nil:
		a.Log.Warn("request failed", "method", method, "took", took, "reason", failure.ReasonOf(err).String(), "error", err)
	default:
		a.Log.Info("request", "method", method, "took", took)
	}
	return response, err
}

// toStatus sends the first typed failure with the whole text.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	var typed *failure.Error
	if errors.As(err, &typed) {
		whole := *typed
		if err.Error() != typed.Error() {
			whole = failure.Error{Reason: typed.Reason, Subject: typed.Subject, Problem: strings.TrimPrefix(err.Error(), typed.Subject+": ")}
		}
		return whole.GRPCStatus().Err()
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

func keyOf(key *nodev1.AttachmentKey) attachment.Key {
	return attachment.Key{Network: key.GetNetwork(), ContainerID: key.GetContainerId(), Interface: key.GetInterface()}
}

func malformed(subject, format string, args ...any) error {
	return failure.New(nodev1.Reason_REQUEST_MALFORMED, subject, "", format, args...)
}

func checkedKey(key *nodev1.AttachmentKey) (attachment.Key, error) {
	found := keyOf(key)
	if err := found.Validate(); err != nil {
		return found, malformed("key", "%v", err)
	}
	return found, nil
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, malformed("addresses", "%q is no address with prefix length", text)
		}
		found = append(found, prefix)
	}
	return found, nil
}

// FromRequest checks the form of an AttachRequest.
func FromRequest(request *nodev1.AttachRequest) (*attachment.Attachment, error) {
	addresses, err := prefixes(request.GetAddresses())
	if err != nil {
		return nil, err
	}
	found := &attachment.Attachment{
		Key: keyOf(request.GetKey()), Netns: request.GetNetns(), Rail: request.GetRail(), Port: request.GetPort(), MAC: request.GetMac(),
		Pod:    attachment.Pod{Namespace: request.GetPod().GetNamespace(), Name: request.GetPod().GetName(), UID: request.GetPod().GetUid()},
		Device: request.GetDevice(), Addresses: addresses,
	}
	for _, text := range request.GetGateways() {
		gateway, err := netip.ParseAddr(text)
		if err != nil {
			return nil, malformed("gateways", "%q is no address", text)
		}
		found.Gateways = append(found.Gateways, gateway)
	}
	if err := found.Validate(); err != nil {
		return nil, malformed(found.Key.String(), "%v", err)
	}
	return found, nil
}

func (s *server) Attach(ctx context.Context, request *nodev1.AttachRequest) (*nodev1.AttachResponse, error) {
	wanted, err := FromRequest(request)
	if err != nil {
		return nil, err
	}
	if err := s.agent.Attach(ctx, wanted); err != nil {
		return nil, err
	}
	response := &nodev1.AttachResponse{NetnsInode: wanted.NetnsInode, BootId: wanted.BootID}
	for _, way := range s.agent.podInterface(wanted).MainRoutes() {
		response.Routes = append(response.Routes, &nodev1.Route{Destination: way.Pool.String(), Gateway: way.Gateway.String()})
	}
	return response, nil
}

func (s *server) Detach(ctx context.Context, request *nodev1.DetachRequest) (*nodev1.DetachResponse, error) {
	key, err := checkedKey(request.GetKey())
	if err != nil {
		return nil, err
	}
	return &nodev1.DetachResponse{}, s.agent.Detach(ctx, key)
}

func (s *server) CheckAttachment(ctx context.Context, request *nodev1.CheckAttachmentRequest) (*nodev1.CheckAttachmentResponse, error) {
	expected, err := FromRequest(request.GetExpected())
	if err != nil {
		return nil, err
	}
	return &nodev1.CheckAttachmentResponse{}, s.agent.CheckAttachment(ctx, expected)
}

func (s *server) Announce(ctx context.Context, request *nodev1.AnnounceRequest) (*nodev1.AnnounceResponse, error) {
	key, err := checkedKey(request.GetKey())
	if err != nil {
		return nil, err
	}
	addresses, err := prefixes(request.GetAddresses())
	if err != nil {
		return nil, err
	}
	return &nodev1.AnnounceResponse{}, s.agent.Announce(ctx, key, request.GetRail(), addresses)
}

func (s *server) Withdraw(ctx context.Context, request *nodev1.WithdrawRequest) (*nodev1.WithdrawResponse, error) {
	key, err := checkedKey(request.GetKey())
	if err != nil {
		return nil, err
	}
	return &nodev1.WithdrawResponse{}, s.agent.Withdraw(ctx, key)
}

func (s *server) CheckAnnouncement(ctx context.Context, request *nodev1.CheckAnnouncementRequest) (*nodev1.CheckAnnouncementResponse, error) {
	expected := request.GetExpected()
	key, err := checkedKey(expected.GetKey())
	if err != nil {
		return nil, err
	}
	addresses, err := prefixes(expected.GetAddresses())
	if err != nil {
		return nil, err
	}
	return &nodev1.CheckAnnouncementResponse{}, s.agent.CheckAnnouncement(ctx, key, expected.GetRail(), addresses)
}

func (s *server) Collect(ctx context.Context, request *nodev1.CollectRequest) (*nodev1.CollectResponse, error) {
	if request.GetNetwork() == "" {
		return nil, malformed("network", "it must be named")
	}
	var valid []attachment.Key
	for _, key := range request.GetValid() {
		valid = append(valid, keyOf(key))
	}
	removed, err := s.agent.Collect(ctx, request.GetNetwork(), valid)
	if err != nil {
		return nil, err
	}
	response := &nodev1.CollectResponse{}
	for _, key := range removed {
		response.Removed = append(response.Removed, &nodev1.AttachmentKey{Network: key.Network, ContainerId: key.ContainerID, Interface: key.Interface})
	}
	return response, nil
}

func (s *server) Status(ctx context.Context, request *nodev1.StatusRequest) (*nodev1.StatusResponse, error) {
	return &nodev1.StatusResponse{}, s.agent.Status(ctx, request.GetRail())
}
