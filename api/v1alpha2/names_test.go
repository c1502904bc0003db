package v1alpha2_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"tangram.dev/api/v1alpha2"
)

// The longest name that a MoEDeployment may have leaves room for all names that are made from it.
func TestDerivedNamesFit_WhenNameIsLongest(t *testing.T) {
	longest := "w" + strings.Repeat("x", 38) + "9" // 40 characters: the CEL rule's bound
	const lastOrdinal = 1023

	for _, service := range []string{longest + "-engines", longest + "-gateway"} {
		require.Empty(t, validation.NameIsDNS1035Label(service, false), service)
	}
	pod := fmt.Sprintf("%s-%d", longest, lastOrdinal)
	require.Empty(t, utilvalidation.IsDNS1123Label(pod), "a pod's name is its host name")
	for _, name := range []string{pod + "-tls", longest + "-ca", longest + "-gateway-tls", longest + "-agent", longest + "-world",
		fmt.Sprintf("%s-%d-%s", longest, int64(1)<<62, strings.Repeat("f", 8))} {
		require.Empty(t, validation.NameIsDNSSubdomain(name, false), name)
	}
	require.Empty(t, utilvalidation.IsValidLabelValue(longest))
	require.Empty(t, utilvalidation.IsValidLabelValue(fmt.Sprint(lastOrdinal)))

	// A certificate's DNS SAN: engine.<namespace>.<name>, with the longest namespace.
	require.Empty(t, utilvalidation.IsDNS1123Subdomain("engine."+strings.Repeat("n", 63)+"."+longest))
	// The gateway's ReplicaSet, <deployment>-<hash of 10>; the names of its pods are cut by the API server.
	require.Empty(t, utilvalidation.IsDNS1123Label(longest+"-gateway-0123456789"))
}

func TestKeysAreValid(t *testing.T) {
	for _, key := range []string{v1alpha2.WorldLabel, v1alpha2.ComponentLabel, v1alpha2.OrdinalLabel, v1alpha2.MemberLabel,
		v1alpha2.DeletionCostAnnotation, v1alpha2.AbortAnnotation, v1alpha2.Finalizer} {
		require.Empty(t, utilvalidation.IsQualifiedName(key), key)
	}
	for _, value := range []string{v1alpha2.ComponentRank, v1alpha2.ComponentGateway} {
		require.Empty(t, utilvalidation.IsValidLabelValue(value), value)
	}
}
