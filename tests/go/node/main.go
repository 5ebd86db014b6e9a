// A client of DRA drivers made from the published k8s.io/kubelet module: it registers a driver the way
// kubelet does, prepares and unprepares one claim over every service that the driver offers, reads one
// health message, and prints what it was told as JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func main() {
	socket := flag.String("socket", "", "registration socket of a driver")
	resources := flag.String("pod-resources", "", "PodResources socket of a node; nothing else is done then")
	namespace := flag.String("namespace", "default", "")
	name := flag.String("claim", "", "")
	uid := flag.String("uid", "", "")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var found any
	var err error
	if *resources != "" {
		found, err = list(ctx, *resources)
	} else {
		found, err = drive(ctx, *socket, *namespace, *name, *uid)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(found)
}

func list(ctx context.Context, socket string) (any, error) {
	connection, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	return podresources.NewPodResourcesListerClient(connection).List(ctx, &podresources.ListPodResourcesRequest{})
}

func drive(ctx context.Context, socket, namespace, name, uid string) (any, error) {
	connection, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	registrar := registration.NewRegistrationClient(connection)
	info, err := registrar.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return nil, err
	}
	if _, err := registrar.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil, err
	}
	service, err := dial(info.Endpoint)
	if err != nil {
		return nil, err
	}
	defer service.Close()
	told := map[string]any{"name": info.Name, "type": info.Type, "versions": info.SupportedVersions}

	prepared, err := dra.NewDRAPluginClient(service).NodePrepareResources(ctx, &dra.NodePrepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: namespace, Name: name, Uid: uid}, {Namespace: namespace, Name: "absent", Uid: "absent"}},
	})
	if err != nil {
		return nil, err
	}
	told["v1"] = prepared.Claims
	beta, err := drabeta.NewDRAPluginClient(service).NodePrepareResources(ctx, &drabeta.NodePrepareResourcesRequest{
		Claims: []*drabeta.Claim{{Namespace: namespace, Name: name, Uid: uid}},
	})
	if err != nil {
		return nil, err
	}
	told["v1beta1"] = beta.Claims
	stream, err := health.NewDRAResourceHealthClient(service).NodeWatchResources(ctx, &health.NodeWatchResourcesRequest{})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	told["health"] = first.Devices
	undone, err := dra.NewDRAPluginClient(service).NodeUnprepareResources(ctx, &dra.NodeUnprepareResourcesRequest{
		Claims: []*dra.Claim{{Namespace: namespace, Name: name, Uid: uid}},
	})
	if err != nil {
		return nil, err
	}
	told["unprepared"] = undone.Claims
	return told, nil
}
