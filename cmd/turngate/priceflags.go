package main

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends"
)

// priceFlags are the prices of sandboxes.
type priceFlags struct{ sandboxUSDPerHour []string }

func (f *priceFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringArrayVar(&f.sandboxUSDPerHour, "sandbox-usd-per-hour", nil, prefix+"price of a backend's sandboxes for the costs in results, BACKEND=USD, such as prime=0.12 (repeatable)")
}

func (f *priceFlags) check() error {
	_, err := f.prices()
	return err
}

// maxPrice bounds a price, in USD per hour: the costs of results and their sums are finite.
const maxPrice = 1_000_000

// prices returns the prices by backend.
func (f *priceFlags) prices() (map[string]float64, error) {
	all := map[string]float64{}
	for _, text := range f.sandboxUSDPerHour {
		name, value, _ := strings.Cut(text, "=")
		if err := oneOf("sandbox-usd-per-hour", name, backends.Names()...); err != nil {
			return nil, err
		}
		usd, err := strconv.ParseFloat(value, 64)
		if err != nil || !(usd >= 0 && usd <= maxPrice) {
			return nil, usage("--sandbox-usd-per-hour: %q is not valid: want BACKEND=USD, from 0 to %d, such as prime=0.12", text, maxPrice)
		}
		if _, twice := all[name]; twice {
			return nil, usage("--sandbox-usd-per-hour: %s has two prices", name)
		}
		all[name] = usd
	}
	return all, nil
}
