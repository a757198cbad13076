package tollgate

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/tollgate/gen/tollgate/v1"
	"example.com/tollgate/internal/servertest"
)

// ownLimitsRun asks the real server for limits of their own.
type ownLimitsRun struct {
	*testing.T
	client   *Client
	versions map[string]uint64
}

type ownLimitsStep struct {
	Check      *VectorRequest
	Set        *[]vectorOwnLimit
	Get, Clear *[]vectorKey
	List       *vectorKey
	Domain     *string
	DryRun     bool `json:"dry_run"`
	Users      int
	Result     map[string]any
	Results    []map[string]any
	Error      []string
}

type vectorOwnLimit struct {
	Key             vectorKey
	Users           int
	RequestsPerUnit *uint64 `json:"requests_per_unit"`
	Unlimited       bool
	Note            string
	SetBy           string `json:"set_by"`
	Unit            string
	ExpiresAfter    *int `json:"expires_after_h"`
	ReplacesVersion any  `json:"replaces_version"`
}

// vectorKey is a list of entries, or the value of the entry `user`.
type vectorKey [][2]string

func (k *vectorKey) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		*k = vectorKey{{"user"}}
		return json.Unmarshal(text, &(*k)[0][1])
	}
	return json.Unmarshal(text, (*[][2]string)(k))
}

func (k vectorKey) descriptor() Descriptor {
	var descriptor Descriptor
	for _, entry := range k {
		descriptor = descriptor.And(entry[0], entry[1])
	}
	return descriptor
}

func (k vectorKey) message() *pb.Descriptor {
	message := &pb.Descriptor{}
	for _, entry := range k {
		message.Entries = append(message.Entries, &pb.Entry{Key: entry[0], Value: entry[1]})
	}
	return message
}

func TestOwnLimits_OfVectors_HaveTheirResults(t *testing.T) {
	type vector struct {
		Name    string
		Token   json.RawMessage
		Invalid string
		Steps   []ownLimitsStep
	}
	rules, err := os.ReadFile(filepath.Join("..", "vectors", "own_limits.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, vector := range LoadVectors[vector](t, "own_limits") {
		t.Run(vector.Name, func(t *testing.T) {
			options := Options{Timeout: servertest.Patience, AdminToken: "secret"}
			if vector.Token != nil {
				options.AdminToken = ""
				if err := json.Unmarshal(vector.Token, &options.AdminToken); err != nil {
					t.Fatal(err)
				}
			}
			client, err := New(servertest.Start(t, string(rules)).Address, options)
			if vector.Invalid != "" {
				if name := strings.ReplaceAll(vector.Invalid, "_", ""); err == nil ||
					!strings.Contains(strings.ToLower(err.Error()), name) {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			run := ownLimitsRun{t, client, map[string]uint64{}}
			for i := range vector.Steps {
				run.step(&vector.Steps[i])
			}
		})
	}
}

func (r *ownLimitsRun) step(step *ownLimitsStep) {
	domain := "edge"
	if step.Domain != nil {
		domain = *step.Domain
	}
	switch {
	case step.Check != nil:
		decision, err := r.client.Check(r.Context(), step.Check.Request())
		if err != nil || decision.NoAnswer != nil {
			r.Fatal(err, decision.NoAnswer)
		}
		described := map[string]any{"allowed": decision.Allowed}
		if limit := decision.Tightest(); limit != nil {
			described["requests_per_unit"] = float64(limit.RequestsPerUnit)
			described["remaining"] = float64(limit.Remaining)
		}
		if text := differences(step.Result, described); text != "" {
			r.Errorf("%s", text)
		}
	case step.Set != nil:
		request := &pb.SetLimitsRequest{DryRun: step.DryRun}
		for _, limit := range *step.Set {
			request.Limits = append(request.Limits, r.limits(&limit)...)
		}
		results, err := r.client.SetLimits(r.Context(), request)
		r.compare(step, results, err)
	case step.Get != nil:
		results, err := r.client.GetLimits(r.Context(), domain, descriptors(*step.Get)...)
		r.compare(step, results, err)
	case step.Clear != nil:
		results, err := r.client.ClearLimits(r.Context(), domain, descriptors(*step.Clear)...)
		r.compare(step, results, err)
	case step.List != nil:
		var listed []LimitResult
		var failed error
		for limit, err := range r.client.ListLimits(r.Context(), domain, step.List.descriptor().Entries...) {
			if failed = err; err == nil {
				listed = append(listed, LimitResult{Limit: limit})
			}
		}
		if step.Users > 0 {
			r.compareUsers(step.Users, listed)
			return
		}
		r.compare(step, listed, failed)
	}
}

func descriptors(keys []vectorKey) []Descriptor {
	each := make([]Descriptor, len(keys))
	for i, key := range keys {
		each[i] = key.descriptor()
	}
	return each
}

// limits are one limit, or one of each of its users.
func (r *ownLimitsRun) limits(limit *vectorOwnLimit) []*pb.SetLimit {
	message := func(key vectorKey) *pb.SetLimit {
		own := &pb.OwnLimit{
			Domain: "edge", Key: key.message(), RequestsPerUnit: limit.RequestsPerUnit, Unlimited: limit.Unlimited,
			Note: limit.Note, SetBy: limit.SetBy, Unit: Unit(pb.Limit_Unit_value[strings.ToUpper(limit.Unit)]),
		}
		if limit.ExpiresAfter != nil {
			own.ExpiresAfter = durationpb.New(time.Duration(*limit.ExpiresAfter) * time.Hour)
		}
		set := &pb.SetLimit{Limit: own}
		switch version := limit.ReplacesVersion.(type) {
		case float64:
			set.ReplacesVersion = new(uint64(version))
		case string:
			set.ReplacesVersion = new(r.versions[version])
		}
		return set
	}
	if limit.Users == 0 {
		return []*pb.SetLimit{message(limit.Key)}
	}
	var each []*pb.SetLimit
	for user := range limit.Users {
		each = append(each, message(append(slices.Clip(limit.Key), [2]string{"user", strconv.Itoa(user)})))
	}
	return each
}

// compareUsers finds out whether each of so many users is listed once.
func (r *ownLimitsRun) compareUsers(users int, listed []LimitResult) {
	seen := map[string]bool{}
	for _, each := range listed {
		entries := each.Limit.GetKey().GetEntries()
		seen[entries[len(entries)-1].GetValue()] = true
	}
	for user := range users {
		if !seen[strconv.Itoa(user)] {
			r.Errorf("user %d is not listed", user)
		}
	}
	if len(listed) != users {
		r.Errorf("%d limits are listed", len(listed))
	}
}

func (r *ownLimitsRun) compare(step *ownLimitsStep, results []LimitResult, err error) {
	r.Helper()
	var invalid *InvalidRequestError
	var noAnswer *NoAnswerError
	var found []string
	switch {
	case errors.As(err, &invalid):
		found = []string{"invalid_request"}
	case errors.As(err, &noAnswer):
		found = []string{"no_answer", code.Code(noAnswer.Code).String()}
	}
	if !slices.Equal(found, step.Error) {
		r.Fatal(err)
	}
	if step.Results == nil {
		for _, each := range results {
			if each.Err != nil {
				r.Error(each.Err)
			}
		}
		return
	}
	if len(results) != len(step.Results) {
		r.Fatalf("%d results", len(results))
	}
	for i, expected := range step.Results {
		described := describeResult(&results[i])
		if name, isVariable := expected["version"].(string); isVariable {
			expected["version"] = float64(r.version(name, results[i].Limit.GetVersion()))
		}
		if text := differences(expected, described); text != "" {
			r.Errorf("%d:%s", i, text)
		}
	}
}

// version is the one that is expected. A variable is bound to the first one that is received.
func (r *ownLimitsRun) version(name string, received uint64) uint64 {
	if _, isBound := r.versions[name]; !isBound {
		for _, other := range r.versions {
			if received <= other {
				r.Errorf("version %d after %d", received, other)
			}
		}
		r.versions[name] = cmp.Or(received, math.MaxUint64)
	}
	return r.versions[name]
}

func describeResult(result *LimitResult) map[string]any {
	described := map[string]any{"rule": result.Rule}
	if result.Err != nil {
		described["error"] = []any{code.Code(result.Err.Code).String(), result.Err.Reason}
	}
	limit := result.Limit
	if limit == nil {
		return described
	}
	key := []any{}
	for _, entry := range limit.GetKey().GetEntries() {
		key = append(key, []any{entry.GetKey(), entry.GetValue()})
	}
	described["key"] = key
	if limit.RequestsPerUnit != nil {
		described["requests_per_unit"] = float64(limit.GetRequestsPerUnit())
	}
	described["unlimited"] = limit.GetUnlimited()
	described["note"] = limit.GetNote()
	described["set_by"] = limit.GetSetBy()
	described["set_by_is_claimed"] = limit.GetSetByIsClaimed()
	described["version"] = float64(limit.GetVersion())
	if unit := limit.GetUnit(); unit != UnitUnknown {
		described["unit"] = strings.ToLower(unit.String())
	}
	if limit.ExpiresAfter != nil {
		described["expires_after_h"] = math.Ceil(limit.GetExpiresAfter().AsDuration().Hours())
	}
	return described
}
