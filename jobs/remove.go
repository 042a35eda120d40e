package jobs

import (
	"fmt"
	"os"
	"path/filepath"
)

// Remove removes the folder of a job of turngate or Harbor. A job that runs is refused, as
// is a link to a folder. A folder that was removed in part is still a job.
func Remove(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("remove the job: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not valid: want the folder of a job, and no link to it", dir)
	}
	if err := Is(dir); err != nil {
		return err
	}
	at, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("remove the job: %w", err)
	}
	defer at.Close()
	if err := flock(at); err != nil {
		return fmt.Errorf("the job %s %w; `turngate job cancel` ends one that runs", dir, err)
	}
	list, err := at.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("remove the job: %w", err)
	}
	for _, name := range list { // the files that make it a job are the last ones
		if name == planName || name == "config.json" || name == "result.json" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove the job: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the job: %w", err)
	}
	return nil
}
