package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/flow"
)

// Detach removes an attachment.
func (a *Agent) Detach(ctx context.Context, key attachment.Key) error {
	release, err := a.busy.take(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	return a.remove(ctx, key)
}

func unknown(key attachment.Key) error {
	return failure.New(nodev1.Reason_ATTACHMENT_UNKNOWN, key.String(), "railweave-ovs must come before railweave-frr in the chain; if it does, restart the pod", "the agent has no such attachment")
}

func (a *Agent) find(key attachment.Key) (*attachment.Attachment, bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	held, known := a.attachments[key]
	if !known {
		return nil, false
	}
	return held.Clone(), true
}

// setAnnounced changes what the attachment wants and makes it so.
func (a *Agent) setAnnounced(ctx context.Context, key attachment.Key, announced bool) error {
	a.mutex.Lock()
	held, known := a.attachments[key]
	// A withdrawal that failed is not to succeed for being repeated.
	if !known || announced && held.Announced {
		a.mutex.Unlock()
		return nil
	}
	held.Announced = announced
	r := a.rails[held.Rail]
	a.mutex.Unlock()
	// Side by side: whichever a crash leaves undone, the next start does (announce) or the repeated DEL (withdraw).
	saved := make(chan error, 1)
	go func() { saved <- a.saving.do(ctx) }()
	applied := wrap(r.applying.do(ctx), nodev1.Reason_ROUTE_FAILED, key.String(), "the routes were not changed")
	if applied == nil && !announced {
		applied = wrap(a.withdrawHosts(held), nodev1.Reason_ROUTE_FAILED, key.String(), "the routes were not removed")
	}
	return errors.Join(applied, wrap(<-saved, nodev1.Reason_STORE_FAILED, a.Config.StateDir, "the store was not written"))
}

func sameAnnouncement(held *attachment.Attachment, rail string, addresses []netip.Prefix) error {
	if held.Rail == rail && slices.Equal(held.Addresses, addresses) {
		return nil
	}
	return failure.New(nodev1.Reason_ATTACHMENT_DIFFERS, held.Key.String(), "both plugins must name the same rail, and no plugin between them may change the addresses",
		"it was attached to %s with %v, the announcement is for %s with %v", held.Rail, held.Addresses, rail, addresses)
}

// Announce makes the leaf learn the addresses.
func (a *Agent) Announce(ctx context.Context, key attachment.Key, railName string, addresses []netip.Prefix) error {
	r, err := a.findRail(railName)
	if err != nil {
		return err
	}
	release, err := a.busy.take(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	held, known := a.find(key)
	if !known {
		return unknown(key)
	}
	if err := sameAnnouncement(held, railName, addresses); err != nil {
		return err
	}
	if problem := r.usable(); problem != nil {
		return problem
	}
	if _, err := r.awaitPort(ctx, held.Port); err != nil {
		return err
	}
	if err := a.setAnnounced(ctx, key, true); err != nil {
		return err
	}
	return a.routesAreThere(held)
}

// withdrawHosts takes the routes of an attachment away that is not announced any more, one by one: the rail goes by the kernel's list,
// which may lack one of them. To be called when the rail has been applied since, as until then it may announce what it knew before. An
// address that another attachment announces meanwhile stays, and none comes to be announced while the mutex is held.
func (a *Agent) withdrawHosts(held *attachment.Attachment) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	announced := map[netip.Addr]bool{}
	for _, other := range a.attachments {
		for _, host := range other.Hosts() {
			announced[host] = announced[host] || other.Announced
		}
	}
	for _, host := range held.Hosts() {
		if !announced[host] {
			if err := a.Kernel.Withdraw(host); err != nil {
				return err
			}
		}
	}
	return nil
}

// routeLooks at the kernel's list. While routes come and go a list of IPv6 routes lacks one or another, without a sign of it: one route
// in some 4,000 where 600 stand and others change all the time (Linux 6.18). To be asked for one alone a blackhole route does not answer.
const routeLooks = 3

func (a *Agent) routesAreThere(held *attachment.Attachment) error {
	missing := held.Hosts()
	for range routeLooks {
		present, err := a.Kernel.Announcements()
		if err != nil {
			return wrap(err, nodev1.Reason_ROUTE_DIFFERS, held.Key.String(), "the kernel's routes cannot be read")
		}
		missing = slices.DeleteFunc(missing, func(host netip.Addr) bool { return present[host] })
		if len(missing) == 0 {
			return nil
		}
	}
	return failure.New(nodev1.Reason_ROUTE_DIFFERS, missing[0].String(), "see the agent's log; it puts the route back once port and bridge are in place", "its blackhole route is not in the kernel")
}

// Withdraw ends an announcement.
func (a *Agent) Withdraw(ctx context.Context, key attachment.Key) error {
	release, err := a.busy.take(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	return a.setAnnounced(ctx, key, false)
}

// CheckAttachment compares switch and pod with what Attach put there.
func (a *Agent) CheckAttachment(ctx context.Context, expected *attachment.Attachment) error {
	if err := expected.Validate(); err != nil {
		return failure.New(nodev1.Reason_REQUEST_MALFORMED, expected.Key.String(), "", "%v", err)
	}
	held, known := a.find(expected.Key)
	if !known {
		return unknown(expected.Key)
	}
	r := a.rails[held.Rail]
	if r.config.Name != expected.Rail || held.Port != expected.Port || held.MAC != expected.MAC || held.Netns != expected.Netns || !slices.Equal(held.Addresses, expected.Addresses) {
		return failure.New(nodev1.Reason_ATTACHMENT_DIFFERS, expected.Key.String(), "restart the pod", "it was attached with port %s, %s, %v on %s", held.Port, held.MAC, held.Addresses, held.Rail)
	}
	if !a.Pods.Alive(held.Netns, held.NetnsInode) {
		return failure.New(nodev1.Reason_NETNS_MISSING, held.Netns, "restart the pod", "it is not the namespace that was attached")
	}
	r.mutex.Lock()
	problem := r.problem
	r.mutex.Unlock()
	if problem != nil {
		return problem
	}
	bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
	if err != nil || bridge == nil {
		return r.missing(err, "it does not exist")
	}
	if port, there := bridge.Ports[held.Port]; !there || port.OFPort <= 0 {
		return failure.New(nodev1.Reason_PORT_MISSING, held.Port, "the agent puts it back if the link exists; else restart the pod", "it is not on bridge %s", r.config.Bridge)
	}
	if err := a.checkPortMTU(held); err != nil {
		return err
	}
	if err := r.checkFlows(ctx); err != nil {
		return err
	}
	if err := a.Pods.Check(a.podInterface(held)); err != nil {
		return podFailure(held, err)
	}
	return a.judgeRDMA(held)
}

func (a *Agent) checkPortMTU(held *attachment.Attachment) error {
	wanted := a.railMTU(held.Rail)
	found, err := a.Kernel.MTU(held.Port)
	switch {
	case err != nil:
		return failure.New(nodev1.Reason_PORT_MISSING, held.Port, "restart the pod", "its link cannot be read").Because(err)
	case wanted > 0 && found != wanted:
		return failure.New(nodev1.Reason_DATAPATH_DIFFERS, held.Port, "the agent sets it again at its next reconciliation",
			"it has MTU %d, the pod's end has %d", found, wanted)
	default:
		return nil
	}
}

// checkFlows compares the whole bridge: what is missing for this pod and what somebody added are both wrong.
func (r *rail) checkFlows(ctx context.Context) error {
	a := r.agent
	bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
	if err != nil || bridge == nil {
		return r.missing(err, "it does not exist")
	}
	program := flow.Text(flow.Program(a.railState(r, bridge, a.onRail(r.config.Name))))
	differences, err := a.Switch.Differences(ctx, r.config.Bridge, program)
	if err != nil {
		return failure.New(nodev1.Reason_DATAPATH_DIFFERS, r.config.Bridge, "see whether ovs-vswitchd runs", "its flows cannot be read").Because(err)
	}
	if len(differences) == 0 {
		return nil
	}
	// While others come and go, what is desired may not be installed yet, or no longer. The rail itself compares the switch with
	// what it has installed, between two changes, and puts right what differs.
	differences, err = r.compare(ctx)
	switch {
	case len(differences) > 0:
		return failure.New(nodev1.Reason_DATAPATH_DIFFERS, r.config.Bridge, "the agent replaces them now", "%d flows differ, first %q", len(differences), differences[0])
	default:
		return wrap(err, nodev1.Reason_DATAPATH_DIFFERS, r.config.Bridge, "its flows are not those it must have")
	}
}

// compare has the rail's batch verify the switch, and then make it what it must be. Of a switch of which nobody knows what it has,
// and which was given all flows, there is nothing to tell.
func (r *rail) compare(ctx context.Context) (differences []string, err error) {
	told := make(chan []string, 1)
	r.mutex.Lock()
	r.comparing = append(r.comparing, told)
	r.mutex.Unlock()
	r.verifying.Store(true)
	err = r.applying.do(ctx)
	select {
	case differences = <-told:
	default:
	}
	return differences, err
}

// CheckAnnouncement tells whether the leaf can know the addresses.
func (a *Agent) CheckAnnouncement(_ context.Context, key attachment.Key, railName string, addresses []netip.Prefix) error {
	held, known := a.find(key)
	if !known {
		return unknown(key)
	}
	if err := sameAnnouncement(held, railName, addresses); err != nil {
		return err
	}
	if !held.Announced {
		return failure.New(nodev1.Reason_ROUTE_DIFFERS, key.String(), "restart the pod", "it was never announced")
	}
	if err := a.routesAreThere(held); err != nil {
		return err
	}
	if problem := a.rails[railName].usable(); problem != nil {
		return problem
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, host := range held.Hosts() {
		if a.disputed[host] >= disputeLimit {
			return failure.New(nodev1.Reason_ROUTE_DIFFERS, host.String(), "the agent has bgpd ask zebra again; if it stays so restart FRR", "the kernel has its route, but bgpd does not")
		}
	}
	return nil
}

// Collect removes this network's attachments that are not listed and whose namespace is dead. One that cannot be removed now holds up
// none of the others, as the specification of GC wants it.
func (a *Agent) Collect(ctx context.Context, network string, valid []attachment.Key) ([]attachment.Key, error) {
	listed := map[attachment.Key]bool{}
	for _, key := range valid {
		key.Network = network
		listed[key] = true
	}
	a.mutex.Lock()
	var dead []attachment.Key
	for key, held := range a.attachments {
		if key.Network == network && !listed[key] && !a.busy.busy(key) && a.dead(held) {
			dead = append(dead, key)
		}
	}
	a.mutex.Unlock()
	slices.SortFunc(dead, attachment.Key.Compare)
	var collected []attachment.Key
	var problems error
	for _, key := range dead {
		removed, err := a.removeDead(ctx, key)
		problems = errors.Join(problems, err)
		if removed {
			collected = append(collected, key)
		}
	}
	return collected, problems
}

// staleLimit: within it a restart of an API server goes unnoticed.
const staleLimit = 2 * time.Minute

// Status answers nil only if an Attach and an Announce can succeed now.
func (a *Agent) Status(ctx context.Context, railName string) error {
	r, err := a.findRail(railName)
	if err != nil {
		return err
	}
	// Causes before effects: with the userspace datapath the session dies with the switch.
	if err := a.Database.Answers(ctx); err != nil {
		return failure.New(nodev1.Reason_NOT_READY, r.config.Bridge, "see whether ovsdb-server runs", "the Open vSwitch database does not answer").Because(err)
	}
	if problem := r.switchAnswers(ctx); problem != nil {
		return problem
	}
	if problem := r.usable(); problem != nil {
		return problem
	}
	if err := a.Source.Reached(); err != nil {
		return failure.New(nodev1.Reason_TENANCY_STALE, "tenancy", "see whether the API server can be reached from the node", "known addresses still work, new ones are denied").Because(err)
	}
	if since, why := a.Source.Stale(); !since.IsZero() && a.Now().Sub(since) > staleLimit {
		return failure.New(nodev1.Reason_TENANCY_STALE, "tenancy", "see whether the API server can be reached from the node", "nothing was heard since %s; known addresses still work, new ones are denied", since.Format(time.RFC3339)).Because(why)
	}
	if problem := a.storeProblem(); problem != nil {
		return problem
	}
	return a.nodeProblem(railName)
}

// storeProblem tells why no promise can be kept across a crash.
func (a *Agent) storeProblem() error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	const remedy = "see whether the state directory is there, writable and not full"
	switch {
	case a.unsaved != nil:
		return failure.New(nodev1.Reason_STORE_FAILED, a.Config.StateDir, remedy, "the store was not written").Because(a.unsaved)
	case a.unread != nil:
		return failure.New(nodev1.Reason_STORE_FAILED, a.Config.StateDir, remedy, "DELs of the time without an agent cannot be read").Because(a.unread)
	default:
		return nil
	}
}
