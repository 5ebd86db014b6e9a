// The peer of the allocator bench: upstream's allocator behind a line protocol.
//
// Every line on stdin is a JSON command, every answer a JSON line on stdout:
//
//	{"load": "file.json"}                          slices, classes, nodes and devices in use
//	{"claims": [...], "first": 100, "limitMs": N}  allocate on the nodes in order
//
// What is measured is what a scheduler does for one pod: make an allocator from the state
// it keeps, then ask it node by node until enough nodes are found.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type usedDevice struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

type inventory struct {
	Slices           []*resourceapi.ResourceSlice `json:"slices"`
	Classes          []*resourceapi.DeviceClass   `json:"classes"`
	Nodes            []*v1.Node                   `json:"nodes"`
	AllocatedDevices []usedDevice                 `json:"allocatedDevices"`
}

type command struct {
	Load    string                       `json:"load"`
	Claims  []*resourceapi.ResourceClaim `json:"claims"`
	First   int                          `json:"first"`
	LimitMs int                          `json:"limitMs"`
}

type answer struct {
	Ms       float64 `json:"ms"`
	Feasible int     `json:"feasible"`
	Refused  int     `json:"refused"`
	TimedOut bool    `json:"timedOut"`
	Error    string  `json:"error"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(c))
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("class %q not found", name)
}

type peer struct {
	features structured.Features
	cache    *cel.Cache
	world    inventory
	classes  classes
	used     sets.Set[structured.DeviceID]
}

func (p *peer) load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	p.world = inventory{}
	if err := json.Unmarshal(text, &p.world); err != nil {
		return err
	}
	p.classes = classes{}
	for _, class := range p.world.Classes {
		p.classes[class.Name] = class
	}
	p.used = sets.New[structured.DeviceID]()
	for _, device := range p.world.AllocatedDevices {
		p.used.Insert(structured.MakeDeviceID(device.Driver, device.Pool, device.Device))
	}
	return nil
}

func (p *peer) ask(c command) answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(c.LimitMs)*time.Millisecond)
	defer cancel()
	var a answer
	start := time.Now()
	state := structured.AllocatedState{
		AllocatedDevices:         p.used,
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, p.features, state, p.classes, p.world.Slices, p.cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	for _, node := range p.world.Nodes {
		results, err := allocator.Allocate(ctx, node, c.Claims)
		if err != nil {
			a.TimedOut = errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil
			a.Error = err.Error()
			break
		}
		if len(results) == 0 {
			a.Refused++
			continue
		}
		a.Feasible++
		if c.First > 0 && a.Feasible >= c.First {
			break
		}
	}
	a.Ms = float64(time.Since(start).Nanoseconds()) / 1e6
	return a
}

func main() {
	p := &peer{
		// The gates of a plain v1.37 cluster.
		features: structured.Features{
			AdminAccess:            true,
			PrioritizedList:        true,
			PartitionableDevices:   true,
			DeviceTaints:           true,
			DeviceBindingAndStatus: true,
			ConsumableCapacity:     true,
		},
		cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}),
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var c command
		a := answer{}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			a.Error = err.Error()
		} else if c.Load != "" {
			if err := p.load(c.Load); err != nil {
				a.Error = err.Error()
			}
		} else {
			a = p.ask(c)
		}
		if err := out.Encode(a); err != nil {
			os.Exit(1)
		}
	}
}
