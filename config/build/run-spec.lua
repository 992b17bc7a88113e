-- run-spec.lua - busted in this very process: `busted --lua=luajit` starts a second one, and hides how that ended.
require "busted.runner" { standalone = false }
