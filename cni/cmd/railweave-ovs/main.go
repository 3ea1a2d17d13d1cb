// Command railweave-ovs is a chained CNI plugin that attaches a pod's interface to a rail: datapath and in-pod configuration.
// It only translates: the node agent does the work.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/railweave/railweave/cni/internal/plugin"
)

func main() {
	skel.PluginMainFuncs(plugin.OVS(), plugin.Versions(), "railweave-ovs: attaches a pod's interface to a rail: datapath and in-pod configuration")
}
