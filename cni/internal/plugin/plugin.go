package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/store"
)

// Versions of the CNI specification the plugins speak. The older two also for DEL: one that the plugins refused would fail for ever,
// and keep the plugins before them in the chain from giving back what they gave out.
func Versions() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// OVS and FRR are the two programs' verbs.
func OVS() skel.CNIFuncs {
	return skel.CNIFuncs{Add: attach, Del: detach, Check: checkAttachment, GC: collect, Status: reportStatus}
}

// FRR announces what OVS attached.
func FRR() skel.CNIFuncs {
	return skel.CNIFuncs{Add: announce, Del: withdraw, Check: checkAnnouncement, GC: collect, Status: reportStatus}
}

// call runs one RPC. The kernel has told the agent who we are; the socket needs no other protection.
func (c *Config) call(do func(context.Context, nodev1.NodeClient) error) error {
	connection, err := grpc.NewClient("unix:"+c.Settings.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // the process is about to end
	ctx, cancel := context.WithTimeout(context.Background(), c.Settings.timeout())
	defer cancel()
	return do(ctx, nodev1.NewNodeClient(connection))
}

// away tells whether the agent is not there to serve: no socket, nobody listening, starting, or gone in the middle.
func away(err error) bool {
	return status.Code(err) == codes.Unavailable && (failure.ReasonOf(err) == nodev1.Reason_REASON_UNSPECIFIED || failure.ReasonOf(err) == nodev1.Reason_NOT_READY)
}

func (c *Config) silence() string {
	return fmt.Sprintf("the node agent does not answer on %s: is railweave-node running on this node?", c.Settings.Socket)
}

// toCNI makes a CNI error of the agent's.
func (c *Config) toCNI(err error) error {
	if err == nil {
		return nil
	}
	var known *types.Error
	if errors.As(err, &known) {
		return err
	}
	received, _ := status.FromError(err)
	reason := failure.ReasonOf(err)
	switch {
	case reason != nodev1.Reason_REASON_UNSPECIFIED:
		return types.NewError(failure.Codes(reason).CNI, received.Message(), reason.String())
	case received.Code() == codes.Unavailable, received.Code() == codes.DeadlineExceeded, received.Code() == codes.Canceled:
		return types.NewError(failure.CNITryAgain, c.silence(), received.Message())
	default:
		return types.NewError(failure.CNIInternal, received.Message(), received.Code().String())
	}
}

// chained reads what ADD and CHECK need: the configuration, and the result of the plugins before.
func chained(args *skel.CmdArgs) (*Config, *current.Result, error) {
	config, err := ParseConfig(args.StdinData)
	if err != nil {
		return nil, nil, err
	}
	result, err := config.previous()
	return config, result, err
}

// attachmentOf is what railweave-ovs asks of the agent, for ADD and CHECK.
func attachmentOf(args *skel.CmdArgs) (*Config, *current.Result, *nodev1.AttachRequest, error) {
	config, result, err := chained(args)
	if err != nil {
		return nil, nil, nil, err
	}
	request, err := config.attachRequest(args, result)
	return config, result, request, err
}

// announcementOf is what railweave-frr asks of the agent, for ADD and CHECK.
func announcementOf(args *skel.CmdArgs) (*Config, *current.Result, *nodev1.AnnounceRequest, error) {
	config, result, err := chained(args)
	if err != nil {
		return nil, nil, nil, err
	}
	request, err := config.announceRequest(args, result)
	return config, result, request, err
}

func attach(args *skel.CmdArgs) error {
	config, result, request, err := attachmentOf(args)
	if err != nil {
		return err
	}
	var response *nodev1.AttachResponse
	err = config.call(func(ctx context.Context, agent nodev1.NodeClient) (err error) {
		response, err = agent.Attach(ctx, request)
		return err
	})
	if err != nil {
		return config.toCNI(err)
	}
	for _, route := range response.GetRoutes() {
		_, destination, err := net.ParseCIDR(route.GetDestination())
		if err != nil {
			return types.NewError(failure.CNIInternal, "the node agent answered with a malformed route", err.Error())
		}
		result.Routes = append(result.Routes, &types.Route{Dst: *destination, GW: net.ParseIP(route.GetGateway())})
	}
	return types.PrintResult(result, config.CNIVersion)
}

func checkAttachment(args *skel.CmdArgs) error {
	config, _, request, err := attachmentOf(args)
	if err != nil {
		return err
	}
	return config.toCNI(config.call(func(ctx context.Context, agent nodev1.NodeClient) error {
		_, err := agent.CheckAttachment(ctx, &nodev1.CheckAttachmentRequest{Expected: request})
		return err
	}))
}

func (c *Config) announceRequest(args *skel.CmdArgs, result *current.Result) (*nodev1.AnnounceRequest, error) {
	_, inside, err := interfaces(args, result)
	if err != nil {
		return nil, err
	}
	addresses, _, err := addressesOf(result, inside)
	if err != nil {
		return nil, err
	}
	return &nodev1.AnnounceRequest{Key: c.key(args), Rail: c.Settings.Rail, Addresses: addresses}, nil
}

func announce(args *skel.CmdArgs) error {
	config, result, request, err := announcementOf(args)
	if err != nil {
		return err
	}
	err = config.call(func(ctx context.Context, agent nodev1.NodeClient) error {
		_, err := agent.Announce(ctx, request)
		return err
	})
	if err != nil {
		return config.toCNI(err)
	}
	return types.PrintResult(result, config.CNIVersion)
}

func checkAnnouncement(args *skel.CmdArgs) error {
	config, _, request, err := announcementOf(args)
	if err != nil {
		return err
	}
	return config.toCNI(config.call(func(ctx context.Context, agent nodev1.NodeClient) error {
		_, err := agent.CheckAnnouncement(ctx, &nodev1.CheckAnnouncementRequest{Expected: request})
		return err
	}))
}

func detach(args *skel.CmdArgs) error {
	return end(args, store.Detach, func(ctx context.Context, agent nodev1.NodeClient, key *nodev1.AttachmentKey) error {
		_, err := agent.Detach(ctx, &nodev1.DetachRequest{Key: key})
		return err
	})
}

func withdraw(args *skel.CmdArgs) error {
	return end(args, store.Withdraw, func(ctx context.Context, agent nodev1.NodeClient, key *nodev1.AttachmentKey) error {
		_, err := agent.Withdraw(ctx, &nodev1.WithdrawRequest{Key: key})
		return err
	})
}

type ending func(context.Context, nodev1.NodeClient, *nodev1.AttachmentKey) error

// end is a DEL. With the agent away the plugin does what cannot wait: after DEL the IPAM hands the address out again, so the
// route goes now, and the rest is promised durably.
func end(args *skel.CmdArgs, verb store.Verb, do ending) error {
	config, err := parseForDelete(args.StdinData)
	if err != nil {
		return err
	}
	known := attachment.Key{Network: config.Name, ContainerID: args.ContainerID, Interface: args.IfName}
	if known.Validate() != nil {
		return nil // ADD was refused for it, so that there is nothing to end, and no agent could ever say so otherwise
	}
	key := config.key(args)
	err = config.call(func(ctx context.Context, agent nodev1.NodeClient) error { return do(ctx, agent, key) })
	if err == nil || !away(err) {
		return config.toCNI(err)
	}
	if err := config.endAlone(args, verb, known); err != nil {
		return types.NewError(failure.CNIStore, "the node agent does not answer, and DEL could not be done without it", err.Error())
	}
	return nil
}

func (c *Config) endAlone(args *skel.CmdArgs, verb store.Verb, key attachment.Key) error {
	hosts, err := c.announcedHosts(args, key)
	if err != nil {
		return err
	}
	// First of all: an agent that starts announces nothing that is buried, but would announce again what was only withdrawn.
	if err := store.Bury(c.Settings.StateDir, store.Tombstone{Verb: verb, Key: key}); err != nil {
		return err
	}
	for _, host := range hosts {
		if err := kernel.Withdraw(host); err != nil {
			return err
		}
	}
	return nil
}

// announcedHosts are the attachment's addresses: by the store, or if there is none or it cannot be read by prevResult, which a DEL may lack.
func (c *Config) announcedHosts(args *skel.CmdArgs, key attachment.Key) ([]netip.Addr, error) {
	state, storeErr := store.Read(c.Settings.StateDir)
	if storeErr == nil {
		for _, held := range state.Attachments {
			if held.Key == key {
				return held.Hosts(), nil
			}
		}
		if state.BootID != "" {
			return nil, nil // an agent wrote it: the attachment is gone
		}
	}
	hosts, err := c.previousHosts(args)
	switch {
	case err == nil:
		return hosts, nil
	case storeErr == nil:
		return nil, nil // there never was an agent, as far as anybody can tell
	default:
		return nil, fmt.Errorf("the store cannot be read (%w) and prevResult does not help: %w", storeErr, err)
	}
}

// previousHosts are the addresses that prevResult has.
func (c *Config) previousHosts(args *skel.CmdArgs) ([]netip.Addr, error) {
	result, err := c.previous()
	if err != nil {
		return nil, err
	}
	request, err := c.announceRequest(args, result)
	if err != nil {
		return nil, err
	}
	var hosts []netip.Addr
	for _, text := range request.GetAddresses() {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, prefix.Addr())
	}
	return hosts, nil
}

func collect(args *skel.CmdArgs) error {
	config, err := ParseConfig(args.StdinData)
	if err != nil {
		return err
	}
	request := &nodev1.CollectRequest{Network: config.Name}
	for _, valid := range config.ValidAttachments {
		request.Valid = append(request.Valid, &nodev1.AttachmentKey{ContainerId: valid.ContainerID, Interface: valid.IfName})
	}
	return config.toCNI(config.call(func(ctx context.Context, agent nodev1.NodeClient) error {
		_, err := agent.Collect(ctx, request)
		return err
	}))
}

func reportStatus(args *skel.CmdArgs) error {
	config, err := ParseConfig(args.StdinData)
	if err != nil {
		return err
	}
	err = config.call(func(ctx context.Context, agent nodev1.NodeClient) error {
		_, err := agent.Status(ctx, &nodev1.StatusRequest{Rail: config.Settings.Rail})
		return err
	})
	if err == nil {
		return nil
	}
	received, _ := status.FromError(err)
	reason := failure.ReasonOf(err)
	if reason == nodev1.Reason_REASON_UNSPECIFIED {
		return types.NewError(failure.CNIUnavailable, config.silence(), received.Message())
	}
	return types.NewError(failure.StatusCode(reason), received.Message(), reason.String())
}
