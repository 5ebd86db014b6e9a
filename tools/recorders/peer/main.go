// The peer of the recorders: upstream's allocator and upstream's CEL behind a line protocol.
//
//	recorder allocator < cases.jsonl > answers.jsonl
//	recorder cel       < cases.jsonl > answers.jsonl
//
// Every line of the input is one case, every line of the output its answer, in the same order.
// The formats are described in tools/recorders/README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const timeLimit = 5 * time.Second // for one case; small worlds need milliseconds

// --- the allocator ---------------------------------------------------------------

type usedDevice struct {
	Driver   string                                          `json:"driver"`
	Pool     string                                          `json:"pool"`
	Device   string                                          `json:"device"`
	ShareID  string                                          `json:"shareID"`
	Consumed map[resourceapi.QualifiedName]resource.Quantity `json:"consumed"`
}

func (d usedDevice) id() structured.DeviceID {
	return structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
}

type allocatorCase struct {
	Features               []string                     `json:"features"`
	Node                   *v1.Node                     `json:"node"`
	Claims                 []*resourceapi.ResourceClaim `json:"claims"`
	Classes                []*resourceapi.DeviceClass   `json:"classes"`
	Slices                 []*resourceapi.ResourceSlice `json:"slices"`
	AllocatedDevices       []usedDevice                 `json:"allocatedDevices"`
	AllocatedSharedDevices []usedDevice                 `json:"allocatedSharedDevices"`
	AggregatedCapacity     []usedDevice                 `json:"aggregatedCapacity"`
}

type allocatorAnswer struct {
	Results []resourceapi.AllocationResult `json:"results,omitempty"` // one a claim; absent: does not fit
	Error   string                         `json:"error,omitempty"`
	// Set where the search took too long: upstream's is exponential in places.
	TimedOut bool `json:"timedOut,omitempty"`
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
	// What an informer's lister answers, so that texts are those of a real scheduler.
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclass"), name)
}

// features switches on those fields of the struct that belong to the given gates. The struct's own
// Set method says which gate a field belongs to, so that a new release needs no change here.
func features(gates []string) structured.Features {
	wanted := sets.New(gates...)
	var chosen structured.Features
	value := reflect.ValueOf(&chosen).Elem()
	for i := 0; i < value.NumField(); i++ {
		var single structured.Features
		reflect.ValueOf(&single).Elem().Field(i).SetBool(true)
		if all := single.Set(); all.Len() > 0 && wanted.HasAll(strings.Split(all.UnsortedList()[0], "+")...) {
			value.Field(i).SetBool(true)
		}
	}
	return chosen
}

func askAllocator(line []byte) any {
	var c allocatorCase
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("cannot read the case: %w", err)
	}
	chosen := features(c.Features)
	// Of upstream's three implementations the one that knows every feature, whatever gates are on.
	structured.EnableAllocators("experimental")
	lister := classes{}
	for _, class := range c.Classes {
		lister[class.Name] = class
	}
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, used := range c.AllocatedDevices {
		state.AllocatedDevices.Insert(used.id())
	}
	for _, used := range c.AllocatedSharedDevices {
		share := types.UID(used.ShareID)
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(used.id(), &share))
	}
	for _, used := range c.AggregatedCapacity {
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(used.id(), used.Consumed))
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	cache := cel.NewCache(100, cel.Features{
		EnableConsumableCapacity: chosen.ConsumableCapacity, EnableListTypeAttributes: chosen.ListTypeAttributes,
	})
	allocator, err := structured.NewAllocator(ctx, chosen, state, lister, c.Slices, cache)
	if err != nil {
		return allocatorAnswer{Error: err.Error()}
	}
	results, err := allocator.Allocate(ctx, c.Node, c.Claims)
	if err != nil {
		if ctx.Err() != nil {
			return allocatorAnswer{TimedOut: true}
		}
		return allocatorAnswer{Error: err.Error()}
	}
	return allocatorAnswer{Results: results}
}

// --- CEL -------------------------------------------------------------------------

type celCase struct {
	Expression string   `json:"expression"`
	Gates      []string `json:"gates"`
	Stored     bool     `json:"stored"` // an expression that is in the store already, not a new one
	Device     struct {
		Driver                   string                                                    `json:"driver"`
		AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations"`
		Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
		Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
	} `json:"device"`
}

type celAnswer struct {
	CompileError string  `json:"compileError"`
	MaxCost      uint64  `json:"maxCost"`
	Match        bool    `json:"match"`
	Error        string  `json:"error"`
	Cost         *uint64 `json:"cost"`
}

func askCEL(line []byte) (answer any) {
	var c celCase
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("cannot read the case: %w", err)
	}
	found := celAnswer{}
	defer func() {
		if problem := recover(); problem != nil { // cel-go has a few; they are recorded as what they are
			found.Error = fmt.Sprintf("PANIC %v", problem)
			answer = found
		}
	}()
	gates := sets.New(c.Gates...)
	environmentType := environment.NewExpressions
	if c.Stored {
		environmentType = environment.StoredExpressions
	}
	compiled := cel.GetCompiler(cel.Features{
		EnableConsumableCapacity: gates.Has("DRAConsumableCapacity"),
		EnableListTypeAttributes: gates.Has("DRAListTypeAttributes"),
	}).CompileCELExpression(c.Expression, cel.Options{EnvType: &environmentType})
	if compiled.Error != nil {
		found.CompileError = compiled.Error.Error()
		return found
	}
	found.MaxCost = compiled.MaxCost
	match, details, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   c.Device.Driver,
		AllowMultipleAllocations: c.Device.AllowMultipleAllocations,
		Attributes:               c.Device.Attributes,
		Capacity:                 c.Device.Capacity,
	})
	found.Match = match
	if err != nil {
		found.Error = err.Error()
	}
	if details != nil {
		found.Cost = details.ActualCost()
	}
	return found
}

func main() {
	asks := map[string]func([]byte) any{"allocator": askAllocator, "cel": askCEL}
	var ask func([]byte) any
	if len(os.Args) == 2 {
		ask = asks[os.Args[1]]
	}
	if ask == nil {
		fmt.Fprintln(os.Stderr, "usage: recorder allocator|cel < cases.jsonl")
		os.Exit(2)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	buffered := bufio.NewWriter(os.Stdout)
	out := json.NewEncoder(buffered)
	out.SetEscapeHTML(false)
	for number := 1; lines.Scan(); number++ {
		answer := ask(lines.Bytes())
		if err, ok := answer.(error); ok {
			fmt.Fprintf(os.Stderr, "line %d: %v\n", number, err)
			os.Exit(1)
		}
		if err := out.Encode(answer); err != nil {
			os.Exit(1)
		}
	}
	if lines.Err() != nil || buffered.Flush() != nil {
		os.Exit(1)
	}
}
