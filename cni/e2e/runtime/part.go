package runtime

import (
	"context"
	"encoding/json"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// The plugins of a chain one part at a time: for tests that hand this project's plugins a previous result of their own
// making, as a pod's annotation or a faulty IPAM could bring about.

// AttachPort runs only ovs-cni and the IPAM for one rail, and returns their result as JSON values.
func (r *Runtime) AttachPort(pod *Pod, rail int) (map[string]any, error) {
	return r.addPart(pod, rail, func(chain []any) []any { return chain[:1] })
}

// Previous is the result that an attached pod's plugins were last given.
func (r *Runtime) Previous(pod *Pod, rail int) (map[string]any, error) {
	cached, err := r.cni.GetNetworkListCachedResult(r.rails[rail], r.Config(pod, RailInterface(rail)))
	if err != nil {
		return nil, err
	}
	return asValues(cached)
}

// AttachOwn runs only this project's plugins for one rail, on the given previous result.
func (r *Runtime) AttachOwn(pod *Pod, rail int, previous map[string]any) (*types100.Result, error) {
	result, err := r.addPart(pod, rail, func(chain []any) []any {
		chain[1].(map[string]any)["prevResult"] = previous
		return chain[1:]
	})
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	typed, err := types100.NewResult(text)
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(typed)
}

// addPart runs part of a rail's chain as libcni does, without touching the whole chain's cached result.
func (r *Runtime) addPart(pod *Pod, rail int, part func(chain []any) []any) (map[string]any, error) {
	config := r.RailConfig(rail)
	config["plugins"] = part(config["plugins"].([]any))
	list, err := parseList(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	apart := libcni.NewCNIConfigWithCacheDir([]string{r.options.PluginDir}, filepath.Join(r.Node.Dir, "cni-part"), r.exec)
	result, err := apart.AddNetworkList(ctx, list, r.Config(pod, RailInterface(rail)))
	if err != nil {
		return nil, err
	}
	return asValues(result)
}

func asValues(result types.Result) (map[string]any, error) {
	text, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	var values map[string]any
	return values, json.Unmarshal(text, &values)
}
