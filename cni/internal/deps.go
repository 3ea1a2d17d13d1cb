// Package internal keeps the module's requirements until the packages that use them are written.
package internal

import (
	_ "github.com/containernetworking/cni/pkg/skel"
	_ "github.com/containernetworking/plugins/pkg/ns"
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/ovn-kubernetes/libovsdb/client"
	_ "github.com/ovn-kubernetes/libovsdb/server"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/client-go/dynamic/dynamicinformer"
	_ "k8s.io/client-go/informers"
	_ "k8s.io/client-go/tools/record"
	_ "sigs.k8s.io/yaml"
)
