package main

import (
	"maps"
	"strings"
	"testing"
)

func TestPricesAreCheckedByName(t *testing.T) {
	f := priceFlags{[]string{"prime=0.12", "local=0"}}
	if got, err := f.prices(); err != nil || !maps.Equal(got, map[string]float64{"prime": 0.12, "local": 0}) {
		t.Errorf("got %v, %v", got, err)
	}
	for value, says := range map[string]string{
		"prime": `"prime" is not valid: want BACKEND=USD`, "prime=": "want BACKEND=USD", "prime=-1": "from 0 to 1000000", "prime=NaN": "from 0 to 1000000", "prime=Inf": "from 0 to 1000000", "prime=1e7": "from 0 to 1000000", "prime=1e999": "from 0 to 1000000",
		"cloud=1": `"cloud" is not valid: want one of`, "local=1": "local has two prices",
	} {
		f := priceFlags{[]string{"local=0", value}}
		if err := f.check(); err == nil || !strings.Contains(err.Error(), "--sandbox-usd-per-hour") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", value, err)
		}
	}
}
