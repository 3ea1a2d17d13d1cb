// Package plugin is what the two CNI programs share: their configuration, and the translation between CNI and the agent's
// contract. All else is the agent's business.
package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

// Settings is the `railweave` object of a network configuration.
type Settings struct {
	Rail           string `json:"rail"`
	Socket         string `json:"socket,omitempty"`
	StateDir       string `json:"stateDir,omitempty"`
	TimeoutSeconds int    `json:"timeoutSeconds,omitempty"`
}

// Config is what a plugin reads of its network configuration. Keys outside `railweave` are not judged: meta-plugins add theirs.
type Config struct {
	types.NetConf
	Railweave     json.RawMessage `json:"railweave"`
	RuntimeConfig struct {
		MAC      string `json:"mac"`
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	DeviceID string `json:"deviceID"`

	Settings Settings `json:"-"`
}

const (
	defaultTimeout = 30
	maxTimeout     = 600
)

func wrong(format string, args ...any) *types.Error {
	return types.NewError(failure.CNIConfig, "network configuration: "+fmt.Sprintf(format, args...), "")
}

// ParseConfig reads and checks a network configuration.
func ParseConfig(data []byte) (*Config, error) {
	var config Config
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, types.NewError(failure.CNIDecode, "network configuration: it is no JSON of the expected form", err.Error())
	}
	if config.Name == "" {
		return nil, wrong("name is missing")
	}
	// Package json takes the last of several keys, in whatever case they are written: a reader would see other settings.
	if err := exactKeys(data, func(key string) bool { return !strings.EqualFold(key, settingsKey) || key == settingsKey }, settingsKey); err != nil {
		return nil, wrong("%v", err)
	}
	if len(config.Railweave) == 0 || bytes.Equal(config.Railweave, []byte("null")) {
		return nil, wrong(`the object "railweave" is missing; it names the rail: {"railweave": {"rail": "rail0"}}`)
	}
	const keys = "the keys are rail, socket, stateDir, timeoutSeconds"
	if err := exactKeys(config.Railweave, func(key string) bool { return slices.Contains(settingsKeys, key) }, settingsKeys...); err != nil {
		return nil, wrong("railweave: %v; %s", err, keys)
	}
	if err := json.Unmarshal(config.Railweave, &config.Settings); err != nil {
		return nil, wrong("railweave: %v; %s", err, keys)
	}
	if err := config.Settings.complete(); err != nil {
		return nil, err
	}
	return &config, nil
}

// parseForDelete reads what DEL needs and judges nothing else. A runtime ends the DEL of a chain at the first plugin that fails: if
// ours refused what its ADD was refused for, the port and the address that the plugins before it had given out would stay for ever.
func parseForDelete(data []byte) (*Config, error) {
	var config Config
	var form *json.UnmarshalTypeError // of a key that DEL may not need; package json goes on with the others
	if err := json.Unmarshal(data, &config); err != nil && !errors.As(err, &form) {
		return nil, types.NewError(failure.CNIDecode, "network configuration: it is no JSON of the expected form", err.Error())
	}
	if config.Name == "" {
		return nil, wrong("name is missing")
	}
	_ = json.Unmarshal(config.Railweave, &config.Settings) // what cannot be read is as if it were not given
	settings := &config.Settings
	if !filepath.IsAbs(settings.Socket) {
		settings.Socket = nodeconfig.DefaultSocket
	}
	if !filepath.IsAbs(settings.StateDir) {
		settings.StateDir = nodeconfig.DefaultStateDir
	}
	if settings.TimeoutSeconds < 1 || settings.TimeoutSeconds > maxTimeout {
		settings.TimeoutSeconds = defaultTimeout
	}
	return &config, nil
}

const settingsKey = "railweave"

var settingsKeys = []string{"rail", "socket", "stateDir", "timeoutSeconds"}

// exactKeys refuses an object that has a key which is not allowed, or one of the keys named more than once.
func exactKeys(object []byte, allowed func(key string) bool, once ...string) error {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return errors.New("an object is expected")
	}
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // what else a valid object has here
		switch {
		case !allowed(key):
			return fmt.Errorf("unknown key %q", key)
		case seen[key] && slices.Contains(once, key):
			return fmt.Errorf("key %q is given twice", key)
		}
		seen[key] = true
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) complete() error {
	if s.Rail == "" {
		return wrong("railweave.rail is missing")
	}
	if s.Socket == "" {
		s.Socket = nodeconfig.DefaultSocket
	}
	if s.StateDir == "" {
		s.StateDir = nodeconfig.DefaultStateDir
	}
	if s.TimeoutSeconds == 0 {
		s.TimeoutSeconds = defaultTimeout
	}
	if !filepath.IsAbs(s.Socket) {
		return wrong("railweave.socket %q must be an absolute path", s.Socket)
	}
	if !filepath.IsAbs(s.StateDir) {
		return wrong("railweave.stateDir %q must be an absolute path", s.StateDir)
	}
	if s.TimeoutSeconds < 1 || s.TimeoutSeconds > maxTimeout {
		return wrong("railweave.timeoutSeconds %d must be 1 to %d", s.TimeoutSeconds, maxTimeout)
	}
	return nil
}

func (s *Settings) timeout() time.Duration { return time.Duration(s.TimeoutSeconds) * time.Second }

// ParseArgs reads CNI_ARGS: K1=V1;K2=V2.
func ParseArgs(text string) (map[string]string, error) {
	found := map[string]string{}
	for pair := range strings.SplitSeq(text, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, types.NewError(failure.CNIEnvironment, fmt.Sprintf("CNI_ARGS: %q is not KEY=VALUE", pair), "")
		}
		// Multus repeats what the runtime passed, and sets IgnoreUnknown itself.
		if other, twice := found[key]; twice && other != value && key != "IgnoreUnknown" {
			return nil, types.NewError(failure.CNIEnvironment, fmt.Sprintf("CNI_ARGS: %s is given twice, with different values", key), "")
		}
		found[key] = value
	}
	return found, nil
}

// podOf names the pod; the runtime and Multus pass it in CNI_ARGS.
func podOf(args map[string]string) (*nodev1.Pod, error) {
	pod := &nodev1.Pod{Namespace: args["K8S_POD_NAMESPACE"], Name: args["K8S_POD_NAME"], Uid: args["K8S_POD_UID"]}
	if pod.Namespace == "" || pod.Name == "" {
		return nil, types.NewError(failure.CNIEnvironment, "CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME must name the pod", "")
	}
	return pod, nil
}

// refuseRequestedMAC: ovs-cni gives a pod the MAC address it asks for.
func (c *Config) refuseRequestedMAC(args map[string]string) error {
	for where, mac := range map[string]string{"runtimeConfig.mac": c.RuntimeConfig.MAC, "args.cni.mac": c.Args.CNI.MAC, "MAC in CNI_ARGS": args["MAC"]} {
		if mac != "" {
			return types.NewError(failure.Codes(nodev1.Reason_MAC_REFUSED).CNI, fmt.Sprintf("%s: a pod may not choose its MAC address on the rails; remove %q from its annotation", where, mac), "")
		}
	}
	return nil
}

// previous is what the plugins before us did.
func (c *Config) previous() (*current.Result, error) {
	if c.RawPrevResult == nil {
		return nil, wrong("prevResult is missing: this plugin must come after ovs-cni in a chain")
	}
	// The CNI library reads a null as an entry, and takes what it points to for granted.
	for key, value := range c.RawPrevResult {
		if list, is := value.([]any); is && slices.ContainsFunc(list, func(entry any) bool { return entry == nil }) {
			return nil, types.NewError(failure.CNIDecode, "prevResult: it cannot be read", fmt.Sprintf("an entry of %q is null", key))
		}
	}
	if err := version.ParsePrevResult(&c.NetConf); err != nil {
		return nil, types.NewError(failure.CNIDecode, "prevResult: it cannot be read", err.Error())
	}
	result, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return nil, types.NewError(failure.CNIDecode, "prevResult: it cannot be converted", err.Error())
	}
	return result, nil
}

// attachRequest makes the contract's request of a CNI call.
func (c *Config) attachRequest(args *skel.CmdArgs, result *current.Result) (*nodev1.AttachRequest, error) {
	environment, err := ParseArgs(args.Args)
	if err != nil {
		return nil, err
	}
	if err := c.refuseRequestedMAC(environment); err != nil {
		return nil, err
	}
	pod, err := podOf(environment)
	if err != nil {
		return nil, err
	}
	port, inside, err := interfaces(args, result)
	if err != nil {
		return nil, err
	}
	link := result.Interfaces[inside]
	mac, err := net.ParseMAC(link.Mac)
	if err != nil {
		return nil, wrong("prevResult: interface %s has MAC %q: %v", link.Name, link.Mac, err)
	}
	addresses, gateways, err := addressesOf(result, inside)
	if err != nil {
		return nil, err
	}
	request := &nodev1.AttachRequest{
		Key: c.key(args), Rail: c.Settings.Rail, Pod: pod, Netns: args.Netns, Port: port, Mac: mac.String(),
		Addresses: addresses, Gateways: gateways, Device: c.device(link),
	}
	return request, nil
}

// device is the virtual function: by result (CNI 1.1), by capability, or as Multus writes it into the configuration.
func (c *Config) device(link *current.Interface) string {
	for _, name := range []string{link.PciID, c.RuntimeConfig.DeviceID, c.DeviceID} {
		if name != "" {
			return name
		}
	}
	return ""
}

func (c *Config) key(args *skel.CmdArgs) *nodev1.AttachmentKey {
	return &nodev1.AttachmentKey{Network: c.Name, ContainerId: args.ContainerID, Interface: args.IfName}
}

// interfaces finds the two ends: the switch port on the host and the interface in the pod.
func interfaces(args *skel.CmdArgs, result *current.Result) (port string, inside int, err error) {
	inside = -1
	for i, link := range result.Interfaces {
		switch {
		case link.Sandbox == "" && port != "":
			return "", 0, wrong("prevResult: two interfaces on the host, %s and %s; expected the switch port alone", port, link.Name)
		case link.Sandbox == "":
			port = link.Name
		case link.Name == args.IfName && (link.Sandbox == args.Netns || args.Netns == ""): // a DEL may come without a namespace
			inside = i
		}
	}
	if port == "" {
		return "", 0, wrong("prevResult: no interface on the host; expected the switch port that ovs-cni made")
	}
	if inside < 0 {
		return "", 0, wrong("prevResult: no interface %s in %s", args.IfName, args.Netns)
	}
	return port, inside, nil
}

func addressesOf(result *current.Result, inside int) (addresses, gateways []string, err error) {
	for _, config := range result.IPs {
		if config.Interface != nil && *config.Interface != inside {
			continue
		}
		address, ok := netip.AddrFromSlice(config.Address.IP)
		ones, bits := config.Address.Mask.Size()
		if !ok || bits == 0 {
			return nil, nil, wrong("prevResult: %q is no address", config.Address.String())
		}
		addresses = append(addresses, netip.PrefixFrom(address.Unmap(), ones).String())
		if gateway, ok := netip.AddrFromSlice(config.Gateway); ok {
			gateways = append(gateways, gateway.Unmap().String())
		}
	}
	if len(addresses) == 0 {
		return nil, nil, wrong("prevResult: no addresses: the first plugin of the chain needs an ipam section")
	}
	return addresses, gateways, nil
}
