// A DRA driver made with Kubernetes' own helper library, as a peer for dray's node agent:
// what works with this works with drivers that were built for kubelet.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type lamps struct {
	name, node, cdiDir string
	cancel             context.CancelFunc
}

func (l *lamps) specPath(uid types.UID) string {
	return filepath.Join(l.cdiDir, fmt.Sprintf("go.lamp-claim_%s.json", uid))
}

func (l *lamps) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	answers := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var devices []kubeletplugin.Device
		var entries []map[string]any
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.Driver != l.name {
				continue
			}
			id := fmt.Sprintf("%s-%s", claim.UID, result.Device)
			entries = append(entries, map[string]any{
				"name":           id,
				"containerEdits": map[string]any{"env": []string{"GO_LAMP=" + result.Device}},
			})
			devices = append(devices, kubeletplugin.Device{
				Requests:     []string{result.Request},
				PoolName:     result.Pool,
				DeviceName:   result.Device,
				CDIDeviceIDs: []string{"go.example.com/lamp=" + id},
				ShareID:      result.ShareID,
			})
		}
		spec, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": "go.example.com/lamp", "devices": entries})
		if err == nil {
			err = os.WriteFile(l.specPath(claim.UID), spec, 0o644)
		}
		answers[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return answers, nil
}

func (l *lamps) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	answers := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(l.specPath(claim.UID))
		if os.IsNotExist(err) {
			err = nil
		}
		answers[claim.UID] = err
	}
	return answers, nil
}

func (l *lamps) HandleError(ctx context.Context, err error, msg string) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", msg, err)
}

func (l *lamps) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report := kubeletplugin.DeviceHealthReport{}
		for _, device := range []string{"lamp-0", "lamp-1"} {
			report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
				PoolName: l.node, DeviceName: device, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: time.Now(),
			})
		}
		select {
		case reports <- report:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	node := flag.String("node-name", "", "")
	name := flag.String("driver-name", "go.lamp.example.com", "")
	kubelet := flag.String("kubelet-dir", "/var/lib/kubelet", "")
	cdi := flag.String("cdi-dir", "/var/run/cdi", "")
	flag.Parse()
	if err := run(*kubeconfig, *node, *name, *kubelet, *cdi); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig, node, name, kubelet, cdi string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubelet, "plugins", name)
	for _, folder := range []string{data, cdi, filepath.Join(kubelet, "plugins_registry")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	plugin := &lamps{name: name, node: node, cdiDir: cdi, cancel: cancel}
	helper, err := kubeletplugin.Start(ctx, plugin,
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.DriverName(name),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "lamp-0"}, {Name: "lamp-1"}}}}},
	}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
