package tenancy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/railweave/railweave/cni/internal/attachment"
)

// The custom resources, cluster-scoped: an address is of the fabric, not of a Namespace. The chart defines them.
var (
	AddressResource = schema.GroupVersionResource{Group: "railweave.io", Version: "v1", Resource: "railaddresses"}
	NodeResource    = schema.GroupVersionResource{Group: "railweave.io", Version: "v1", Resource: "railnodes"}
)

// addressSpec and nodeSpec are the objects' spec.
type addressSpec struct {
	Address    string `json:"address"`
	Node       string `json:"node"`
	Rail       string `json:"rail"`
	Namespace  string `json:"namespace"`
	Tenant     Tenant `json:"tenant"`
	Generation int64  `json:"generation"`
	Revoked    bool   `json:"revoked"`
	Changed    bool   `json:"changed"`
}

type nodeSpec struct {
	Node      string           `json:"node"`
	Heartbeat string           `json:"heartbeat"`
	Barrier   int64            `json:"barrier"`
	Acks      map[string]int64 `json:"acks,omitempty"`
}

// Kubernetes is the Source of a cluster.
type Kubernetes struct {
	self       string
	core       kubernetes.Interface
	objects    dynamic.Interface
	addresses  cache.Store
	nodes      cache.Store
	namespaces corelisters.NamespaceLister
	node       corelisters.NodeLister // has this node's alone
	changed    chan struct{}

	mutex sync.Mutex
	dirty bool
	view  View
	// beats are the nodes as their heartbeats were last heard.
	beats map[string]Node
	// echo is when this node's own heartbeat was last heard through the watch: what proves that the watch is alive.
	echo time.Time
}

// OpenKubernetes follows the cluster and returns when everything was heard once.
func OpenKubernetes(ctx context.Context, core kubernetes.Interface, objects dynamic.Interface, self string) (*Kubernetes, error) {
	if _, err := core.CoreV1().Nodes().Get(ctx, self, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("node %s: %w", self, err)
	}
	k := &Kubernetes{
		self: self, core: core, objects: objects, changed: make(chan struct{}, 1), dirty: true, echo: time.Now(), beats: map[string]Node{},
	}
	custom := dynamicinformer.NewDynamicSharedInformerFactory(objects, 0)
	builtin := informers.NewSharedInformerFactory(core, 0)
	addresses, nodes := custom.ForResource(AddressResource).Informer(), custom.ForResource(NodeResource).Informer()
	namespaces := builtin.Core().V1().Namespaces()
	// Of all Nodes this one's alone: a kubelet changes its Node every few minutes.
	mine := informers.NewSharedInformerFactoryWithOptions(core, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, self).String()
	}))
	node := mine.Core().V1().Nodes()
	k.addresses, k.nodes, k.namespaces, k.node = addresses.GetStore(), nodes.GetStore(), namespaces.Lister(), node.Lister()
	everything := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { k.heard() }, UpdateFunc: func(any, any) { k.heard() }, DeleteFunc: func(any) { k.heard() },
	}
	heartbeats := cache.ResourceEventHandlerFuncs{
		AddFunc: func(now any) { k.heardNode(nil, now) }, UpdateFunc: k.heardNode, DeleteFunc: k.forgetNode,
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{addresses: everything, nodes: heartbeats, namespaces.Informer(): everything} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, err
		}
	}
	known := node.Informer().HasSynced
	custom.Start(ctx.Done())
	builtin.Start(ctx.Done())
	mine.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), addresses.HasSynced, nodes.HasSynced, namespaces.Informer().HasSynced, known) {
		return nil, errors.New("the cluster's addresses, nodes and Namespaces could not be read")
	}
	return k, nil
}

func (k *Kubernetes) heard() {
	k.mutex.Lock()
	k.dirty = true
	k.mutex.Unlock()
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// heardNode: a mere heartbeat changes no flows, and a thousand nodes send a hundred a second.
func (k *Kubernetes) heardNode(before, now any) {
	node, ok := decodeNode(now)
	if !ok {
		return
	}
	k.mutex.Lock()
	k.dirty = true
	last, known := k.beats[node.Name]
	node.hear(last, known, time.Now())
	k.beats[node.Name] = node
	if node.Name == k.self {
		k.echo = time.Now()
	}
	k.mutex.Unlock()
	if old, ok := decodeNode(before); !ok || old.Barrier != node.Barrier || fmt.Sprint(old.Acks) != fmt.Sprint(node.Acks) {
		k.heard()
	}
}

func (k *Kubernetes) forgetNode(gone any) {
	if node, ok := decodeNode(gone); ok {
		k.mutex.Lock()
		delete(k.beats, node.Name)
		k.mutex.Unlock()
	}
	k.heard()
}

func spec[T any](object any) (T, bool) {
	var decoded struct {
		Spec T `json:"spec"`
	}
	found, ok := object.(*unstructured.Unstructured)
	if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &decoded) != nil {
		return decoded.Spec, false
	}
	return decoded.Spec, true
}

func decodeNode(object any) (Node, bool) {
	from, ok := spec[nodeSpec](object)
	if !ok {
		return Node{}, false
	}
	heartbeat, err := time.Parse(time.RFC3339Nano, from.Heartbeat)
	node := Node{Name: from.Node, Heartbeat: heartbeat, Barrier: uint64(max(from.Barrier, 0)), Acks: map[string]uint64{}} // #nosec G115 -- not negative
	for name, generation := range from.Acks {
		node.Acks[name] = uint64(max(generation, 0)) // #nosec G115 -- not negative
	}
	return node, err == nil
}

func decodeAddress(object any) (Entry, bool) {
	from, ok := spec[addressSpec](object)
	address, err := netip.ParseAddr(from.Address)
	if !ok || err != nil || address.Zone() != "" || address.Is4In6() {
		return Entry{}, false
	}
	return Entry{Address: address, Node: from.Node, Rail: from.Rail, Namespace: from.Namespace, Tenant: from.Tenant,
		Generation: uint64(max(from.Generation, 0)), Revoked: from.Revoked, Changed: from.Changed}, true // #nosec G115 -- not negative
}

// View of the cluster, built anew after something was heard.
func (k *Kubernetes) View() View {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if !k.dirty {
		return k.view
	}
	view := emptyView()
	namespaces, err := k.namespaces.List(labels.Everything())
	if err != nil {
		return k.view // a lister of memory does not fail
	}
	for _, namespace := range namespaces {
		view.Namespaces[namespace.Name] = TenantOf(namespace.Name, namespace.Labels[Label])
	}
	for _, object := range k.nodes.List() {
		if node, ok := decodeNode(object); ok {
			last, known := k.beats[node.Name] // of before, if its event is still to come
			node.hear(last, known, time.Now())
			view.Nodes[node.Name] = node
		}
	}
	for _, object := range k.addresses.List() {
		// An object's name follows from its address, so two nodes cannot both have one; what does not match was not made by an agent.
		if entry, ok := decodeAddress(object); ok && object.(*unstructured.Unstructured).GetName() == objectName(entry.Address) {
			view.merge(entry)
		}
	}
	k.view, k.dirty = view, false
	return view
}

// Changed is signalled after the view changed.
func (k *Kubernetes) Changed() <-chan struct{} { return k.changed }

// echoLimit: three heartbeats of our own were written or heard of in vain.
const echoLimit = 3 * HeartbeatPeriod

// Stale since this node's own heartbeats are no longer heard.
func (k *Kubernetes) Stale() (time.Time, error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if time.Since(k.echo) < echoLimit {
		return time.Time{}, nil
	}
	return k.echo, errDeaf
}

var errDeaf = errors.New("the heartbeats of this node's own RailNode no longer come back: they cannot be written, or the watch is dead")

// Reached: it was when it was opened.
func (k *Kubernetes) Reached() error { return nil }

// objectName is a DNS name made of an address.
func objectName(address netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(address.StringExpanded())
}

// owners of what this node publishes: with the Node go its addresses. It is asked for each time: a Node that is deleted and
// registered again has another UID, and what names the dead one the garbage collector deletes as often as it is published.
func (k *Kubernetes) owners() ([]metav1.OwnerReference, error) {
	node, err := k.node.Get(k.self)
	if err != nil {
		return nil, fmt.Errorf("nothing is published for a Node that does not exist: %w", err)
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}, nil
}

func object(kind, name string, owners []metav1.OwnerReference, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "railweave.io/v1", "kind": kind, "spec": spec}}
	object.SetName(name)
	object.SetOwnerReferences(owners)
	return object
}

// update gives an object what it must have now; what others added to it stays.
func update(ctx context.Context, resource dynamic.ResourceInterface, held *unstructured.Unstructured, owners []metav1.OwnerReference,
	spec map[string]any,
) error {
	held.Object["spec"] = spec
	held.SetOwnerReferences(owners)
	_, err := resource.Update(ctx, held, metav1.UpdateOptions{})
	return err
}

// Publish creates or updates the address's object. Its name is taken by whoever has the address.
func (k *Kubernetes) Publish(ctx context.Context, entry Entry) error {
	entry.Node = k.self
	owners, err := k.owners()
	if err != nil {
		return err
	}
	name := objectName(entry.Address)
	if held, there, err := k.addresses.GetByKey(name); err == nil && there {
		known, ok := decodeAddress(held)
		if ok && known == entry && slices.Equal(held.(*unstructured.Unstructured).GetOwnerReferences(), owners) {
			return nil
		}
	}
	wanted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&addressSpec{
		Address: entry.Address.String(), Node: entry.Node, Rail: entry.Rail, Namespace: entry.Namespace, Tenant: entry.Tenant,
		Generation: int64(entry.Generation), Revoked: entry.Revoked, Changed: entry.Changed}) // #nosec G115 -- a counter from 1
	if err != nil {
		return err
	}
	resource := k.objects.Resource(AddressResource)
	_, err = resource.Create(ctx, object("RailAddress", name, owners, wanted), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	held, err := resource.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if known, ok := decodeAddress(held); ok && known.Node != k.self {
		return &TakenError{entry.Address, known.Node}
	}
	return update(ctx, resource, held, owners, wanted)
}

// Remove deletes the address's object, if it is this node's.
func (k *Kubernetes) Remove(ctx context.Context, address netip.Addr) error {
	resource, name := k.objects.Resource(AddressResource), objectName(address)
	held, err := resource.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreMissing(err)
	}
	if known, ok := decodeAddress(held); ok && known.Node != k.self {
		return nil
	}
	uid := held.GetUID()
	return ignoreMissing(resource.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}))
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Report creates or updates this node's object.
func (k *Kubernetes) Report(ctx context.Context, node Node) error {
	acks := map[string]int64{}
	for name, generation := range node.Acks {
		acks[name] = int64(generation) // #nosec G115 -- a counter from 1
	}
	wanted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&nodeSpec{Node: k.self, Heartbeat: node.Heartbeat.UTC().Format(time.RFC3339Nano), Barrier: int64(node.Barrier), Acks: acks}) // #nosec G115 -- a counter
	if err != nil {
		return err
	}
	owners, err := k.owners()
	if err != nil {
		return err
	}
	resource := k.objects.Resource(NodeResource)
	held, err := resource.Get(ctx, k.self, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = resource.Create(ctx, object("RailNode", k.self, owners, wanted), metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	return update(ctx, resource, held, owners, wanted)
}

// VerifyPod asks the API server itself: the request decides which tenant's traffic the pod will see.
func (k *Kubernetes) VerifyPod(ctx context.Context, pod attachment.Pod) error {
	if _, exists := k.View().Namespaces[pod.Namespace]; !exists {
		return fmt.Errorf("%s: %w", pod.Namespace, ErrNoNamespace)
	}
	namespace := make(chan error, 1)
	go func() { namespace <- k.verifyNamespace(ctx, pod.Namespace) }()
	return cmp.Or(k.verifyPod(ctx, pod), <-namespace)
}

func (k *Kubernetes) verifyNamespace(ctx context.Context, name string) error {
	found, err := k.core.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w", name, ErrNoNamespace)
	case err != nil:
		return err
	case TenantOf(name, found.Labels[Label]) != k.View().Namespaces[name]:
		return fmt.Errorf("%s: %w", name, ErrBehind)
	default:
		return nil
	}
}

func (k *Kubernetes) verifyPod(ctx context.Context, pod attachment.Pod) error {
	found, err := k.core.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s/%s: %w", pod.Namespace, pod.Name, ErrNoPod)
	case err != nil:
		return err
	case !samePod(found, pod.UID):
		return fmt.Errorf("%s/%s has UID %s, the request says %q: %w", pod.Namespace, pod.Name, found.UID, pod.UID, ErrNoPod)
	case found.Spec.NodeName != k.self:
		return fmt.Errorf("%s/%s is on node %q: %w", pod.Namespace, pod.Name, found.Spec.NodeName, ErrNoPod)
	default:
		return nil
	}
}

// mirrorAnnotation: a static pod's API object has another UID than the kubelet's; this names the kubelet's.
const mirrorAnnotation = "kubernetes.io/config.mirror"

func samePod(found *corev1.Pod, uid string) bool {
	return uid != "" && (string(found.UID) == uid || found.Annotations[mirrorAnnotation] == uid)
}
