// Evaluates device selectors with upstream's own code, for comparison with dray.
//
// One JSON object per line comes in: an expression, the device it is evaluated on and how often;
// one JSON object per line goes out: result, error, actual and estimated cost, and the times taken.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string                                                    `json:"expression"`
	Driver     string                                                    `json:"driver"`
	Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity   map[resourceapi.QualifiedName]resource.Quantity           `json:"capacity"`
	Rounds     int                                                       `json:"rounds"`
}

type answer struct {
	Result    bool    `json:"result"`
	Error     string  `json:"error"`
	Compiled  bool    `json:"compiled"`
	Cost      *uint64 `json:"cost"`
	MaxCost   uint64  `json:"maxCost"`
	CompileMs float64 `json:"compileMs"`
	Ms        float64 `json:"ms"` // the fastest round
}

func milliseconds(since time.Time) float64 {
	return float64(time.Since(since).Nanoseconds()) / 1e6
}

func evaluate(ask question, compile func(string) cel.CompilationResult) answer {
	began := time.Now()
	program := compile(ask.Expression)
	reply := answer{CompileMs: milliseconds(began), MaxCost: program.MaxCost}
	if program.Error != nil {
		reply.Error = program.Error.Error()
		return reply
	}
	reply.Compiled = true
	device := cel.Device{Driver: ask.Driver, Attributes: ask.Attributes}
	device.Capacity = make(map[resourceapi.QualifiedName]resourceapi.DeviceCapacity, len(ask.Capacity))
	for name, value := range ask.Capacity {
		device.Capacity[name] = resourceapi.DeviceCapacity{Value: value}
	}
	for round := 0; round < max(ask.Rounds, 1); round++ {
		began = time.Now()
		result, details, err := program.DeviceMatches(context.Background(), device)
		if took := milliseconds(began); round == 0 || took < reply.Ms {
			reply.Ms = took
		}
		reply.Result = result
		if err != nil {
			reply.Error = err.Error()
		}
		if details != nil {
			reply.Cost = details.ActualCost()
		}
	}
	return reply
}

func main() {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	compile := func(expression string) cel.CompilationResult {
		return compiler.CompileCELExpression(expression, cel.Options{})
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	replies := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			var ask question
			if err := json.Unmarshal(line, &ask); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			if err := replies.Encode(evaluate(ask, compile)); err != nil {
				os.Exit(2)
			}
		}
		if err != nil {
			return
		}
	}
}
