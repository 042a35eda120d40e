#!/bin/sh
# What --agent oracle does: the task is sound if this gets the reward.
sum=0
while read -r n; do
	sum=$((sum + n))
done <numbers.txt
echo "$sum" >sum.txt
