// Command informer is what most programs on Kubernetes are: client-go informers that follow
// objects while something changes them.
//
// It watches pods, claims and slices with typed informers and claims with a dynamic one,
// becomes leader through a Lease, then creates, patches and deletes objects, and waits until
// every informer has seen each step. One JSON line per step goes to stdout; a step that is
// not seen in time ends the program with code 1.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	namespace = "default"
	patience  = 20 * time.Second
)

// diary remembers what informers saw: "kind/what/name" -> labels at that moment.
type diary struct {
	sync.Mutex
	seen map[string]map[string]string
}

func (d *diary) note(kind, what string, object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	meta, ok := object.(metav1.Object)
	if !ok {
		return
	}
	d.Lock()
	defer d.Unlock()
	d.seen[kind+"/"+what+"/"+meta.GetName()] = meta.GetLabels()
}

func (d *diary) follow(kind string, informer cache.SharedIndexInformer) {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { d.note(kind, "added", object) },
		UpdateFunc: func(_, object any) { d.note(kind, "changed", object) },
		DeleteFunc: func(object any) { d.note(kind, "deleted", object) },
	})
	must("handler of "+kind, err)
}

// await waits until all entries are there, and (where a label is wanted) carry it.
func (d *diary) await(step string, label string, entries ...string) {
	deadline := time.Now().Add(patience)
	for {
		missing := []string{}
		d.Lock()
		for _, entry := range entries {
			labels, ok := d.seen[entry]
			if !ok || (label != "" && labels["step"] != label) {
				missing = append(missing, entry)
			}
		}
		d.Unlock()
		if len(missing) == 0 {
			say(step, entries)
			return
		}
		if time.Now().After(deadline) {
			must(step, fmt.Errorf("not seen: %v", missing))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func say(step string, detail any) {
	line, _ := json.Marshal(map[string]any{"step": step, "detail": detail})
	fmt.Println(string(line))
}

func must(step string, err error) {
	if err != nil {
		say("failed: "+step, err.Error())
		os.Exit(1)
	}
}

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must("kubeconfig", err)
	config.UserAgent = "informer/test"
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	typed, err := kubernetes.NewForConfig(config)
	must("typed client", err)
	loose, err := dynamic.NewForConfig(config)
	must("dynamic client", err)

	book := &diary{seen: map[string]map[string]string{}}
	follow(ctx, book, typed, loose)
	becomeLeader(ctx, config)
	work(ctx, book, typed, loose)
}

func follow(ctx context.Context, book *diary, typed kubernetes.Interface, loose dynamic.Interface) {
	factory := informers.NewSharedInformerFactory(typed, 0)
	book.follow("pod", factory.Core().V1().Pods().Informer())
	book.follow("claim", factory.Resource().V1().ResourceClaims().Informer())
	book.follow("slice", factory.Resource().V1().ResourceSlices().Informer())
	claims := schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1beta2", Resource: "resourceclaims"}
	other := dynamicinformer.NewDynamicSharedInformerFactory(loose, 0)
	book.follow("dynamic", other.ForResource(claims).Informer())
	factory.Start(ctx.Done())
	other.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			must("sync", fmt.Errorf("%v", kind))
		}
	}
	other.WaitForCacheSync(ctx.Done())
	say("synced", nil)
}

func becomeLeader(ctx context.Context, config *rest.Config) {
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, "informer",
		resourcelock.ResourceLockConfig{Identity: "informer-1"}, config, 5*time.Second)
	must("lock", err)
	leading := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 6 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) },
			OnStoppedLeading: func() {},
		},
	})
	must("elector", err)
	go elector.Run(ctx)
	select {
	case <-leading:
		say("leading", elector.GetLeader())
	case <-time.After(patience):
		must("leader election", fmt.Errorf("nobody leads"))
	}
}

func work(ctx context.Context, book *diary, typed kubernetes.Interface, loose dynamic.Interface) {
	pods, claims := typed.CoreV1().Pods(namespace), typed.ResourceV1().ResourceClaims(namespace)
	slices := typed.ResourceV1().ResourceSlices()
	none := metav1.CreateOptions{}

	_, err := claims.Create(ctx, aClaim("one"), none)
	must("create claim", err)
	_, err = pods.Create(ctx, aPod("one"), none)
	must("create pod", err)
	node := "node-1"
	_, err = slices.Create(ctx, &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node,
			Pool:    resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "gpu-0"}},
		},
	}, none)
	must("create slice", err)
	book.await("added", "", "pod/added/one", "claim/added/one", "slice/added/one", "dynamic/added/one")

	patch := metav1.PatchOptions{}
	merge := []byte(`{"metadata":{"labels":{"step":"merge"}}}`)
	_, err = claims.Patch(ctx, "one", types.MergePatchType, merge, patch)
	must("merge patch", err)
	_, err = pods.Patch(ctx, "one", types.StrategicMergePatchType, merge, patch)
	must("strategic merge patch", err)
	_, err = slices.Patch(ctx, "one", types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/metadata/labels","value":{"step":"merge"}}]`), patch)
	must("JSON patch", err)
	book.await("patched", "merge", "pod/changed/one", "claim/changed/one", "slice/changed/one", "dynamic/changed/one")

	force := true
	_, err = claims.Patch(ctx, "one", types.ApplyPatchType,
		[]byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"one","labels":{"step":"apply"}}}`),
		metav1.PatchOptions{FieldManager: "informer", Force: &force})
	must("apply", err)
	book.await("applied", "apply", "claim/changed/one", "dynamic/changed/one")

	at := schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"}
	found, err := loose.Resource(at).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: "step=apply"})
	must("dynamic list", err)
	if len(found.Items) != 1 {
		must("dynamic list", fmt.Errorf("%d items", len(found.Items)))
	}
	stale := aClaim("one")
	stale.ResourceVersion = "1"
	if _, err = claims.Update(ctx, stale, metav1.UpdateOptions{}); err == nil {
		must("conflict", fmt.Errorf("an update of version 1 was accepted"))
	}
	say("conflict", err.Error())

	now := int64(0)
	must("delete pod", pods.Delete(ctx, "one", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	must("delete claim", claims.Delete(ctx, "one", metav1.DeleteOptions{}))
	must("delete slices", slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	book.await("deleted", "", "pod/deleted/one", "claim/deleted/one", "slice/deleted/one", "dynamic/deleted/one")
	say("done", nil)
}

func aClaim(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}},
		}}},
	}
}

func aPod(name string) *corev1.Pod {
	claim := name
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example/pause",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
		},
	}
}
