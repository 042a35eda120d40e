#!/bin/bash
cp -R /solution/files/. ./
