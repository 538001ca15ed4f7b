package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Bench is what to measure: one process, one network on loopback, everybody connected with
// everybody. The first node publishes, in bursts of Window that all must have before the next.
type Bench struct {
	Nodes    int    `json:"nodes"`
	Messages int    `json:"messages"`
	Window   int    `json:"window"`
	Size     int    `json:"size"`
	Signed   bool   `json:"signed"`
	Topic    string `json:"topic"`
}

// made is an envelope of LP-6420 with the time of its making in the announcement.
func (b Bench) made(seq int) []byte {
	header := make([]byte, b.Size-len(b.Topic)-26)
	header[0] = 1
	for i := 2; i < 22; i++ {
		header[i] = 0x22
	}
	binary.BigEndian.PutUint64(header[22:], uint64(seq))
	payload := binary.BigEndian.AppendUint16(nil, uint16(len(header)))
	payload = append(payload, header...)
	payload = binary.BigEndian.AppendUint16(payload, 6)
	payload = append(payload, "source"...)
	payload = binary.BigEndian.AppendUint64(payload, uint64(time.Now().UnixMicro()))
	payload = binary.BigEndian.AppendUint16(payload, 0)
	data := binary.BigEndian.AppendUint16([]byte{1, 1}, uint16(len(b.Topic)))
	data = append(data, b.Topic...)
	data = binary.BigEndian.AppendUint32(data, uint32(len(payload)))
	return binary.BigEndian.AppendUint16(append(data, payload...), 0)
}

type benchRun struct {
	Bench
	topics    []*pubsub.Topic
	counts    []*Counts
	hosts     []host.Host
	delivered atomic.Int64
	mu        sync.Mutex
	latencies []int64
	seq       int
	lost      time.Duration // waited for messages that never came
}

// stuck is how long without any arrival the rest of a window counts as lost.
const stuck = 5 * time.Second

func (r *benchRun) start(ctx context.Context) error {
	off := false
	for number := range r.Nodes {
		seed := fmt.Sprintf("%064x", number+1)
		h, err := newHost(seed)
		if err != nil {
			return err
		}
		counts := newCounts()
		config := Config{Signed: r.Signed, FloodPublish: &off, Queue: 65_536}
		ps, err := newPubSub(ctx, h, config, counts)
		if err != nil {
			return err
		}
		topic, err := ps.Join(r.Topic)
		if err != nil {
			return err
		}
		subscription, err := topic.Subscribe(pubsub.WithBufferSize(65_536))
		if err != nil {
			return err
		}
		r.topics, r.hosts, r.counts = append(r.topics, topic), append(r.hosts, h), append(r.counts, counts)
		go r.take(ctx, subscription, number != 0)
	}
	for number, h := range r.hosts {
		for _, other := range r.hosts[number+1:] {
			if err := h.Connect(ctx, peer.AddrInfo{ID: other.ID(), Addrs: other.Addrs()}); err != nil {
				return err
			}
		}
	}
	for !r.meshed() {
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (r *benchRun) meshed() bool {
	for _, counts := range r.counts {
		degree := 0
		counts.locked(func() { degree = len(counts.mesh[r.Topic]) })
		if degree < min(r.Nodes-1, 4) {
			return false
		}
	}
	return true
}

func (r *benchRun) take(ctx context.Context, subscription *pubsub.Subscription, counted bool) {
	for {
		message, err := subscription.Next(ctx)
		if err != nil {
			return
		}
		if !counted {
			continue
		}
		at := len(message.Data) - 2 - 2 - 8
		made := int64(binary.BigEndian.Uint64(message.Data[at:]))
		latency := time.Now().UnixMicro() - made
		r.mu.Lock()
		r.latencies = append(r.latencies, latency)
		r.mu.Unlock()
		r.delivered.Add(1)
	}
}

func (r *benchRun) run(ctx context.Context, count int) error {
	for sent := 0; sent < count; sent += r.Window {
		burst := min(r.Window, count-sent)
		wanted := r.delivered.Load() + int64(burst*(r.Nodes-1))
		for range burst {
			if err := r.topics[0].Publish(ctx, r.made(r.seq)); err != nil {
				return err
			}
			r.seq++
		}
		seen, since := r.delivered.Load(), time.Now()
		for r.delivered.Load() < wanted {
			time.Sleep(50 * time.Microsecond)
			if now := r.delivered.Load(); now != seen {
				seen, since = now, time.Now()
			} else if time.Since(since) > stuck {
				r.lost += stuck
				break
			}
		}
	}
	return nil
}

func cpuMs() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e6
}

func runBench(bench Bench) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &benchRun{Bench: bench}
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.run(ctx, min(bench.Messages, 4*bench.Window)); err != nil {
		return err
	}
	r.mu.Lock()
	r.latencies, r.lost = nil, 0
	r.mu.Unlock()
	cpu, began := cpuMs(), time.Now()
	if err := r.run(ctx, bench.Messages); err != nil {
		return err
	}
	seconds, used := (time.Since(began) - r.lost).Seconds(), cpuMs()-cpu
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.latencies) == 0 {
		return fmt.Errorf("nothing was delivered")
	}
	sort.Slice(r.latencies, func(a, b int) bool { return r.latencies[a] < r.latencies[b] })
	at := func(share float64) float64 {
		return float64(r.latencies[int(share*float64(len(r.latencies)-1))]) / 1000
	}
	text, err := json.Marshal(map[string]float64{
		"messages_per_s": float64(len(r.latencies)) / float64(bench.Nodes-1) / seconds,
		"delivered":      float64(len(r.latencies)) / float64(bench.Messages*(bench.Nodes-1)),
		"cpu_ms":         used / float64(bench.Messages),
		"p50_ms":         at(0.5),
		"p99_ms":         at(0.99),
	})
	fmt.Println(string(text))
	return err
}
