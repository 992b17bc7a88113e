std = "luajit"
max_line_length = 120
files["spec"] = { std = "luajit+busted" }
exclude_files = { "build/**", "bench/**/target/**", "csrc/test/installed/*" }
include_files = { "**/*.lua", "**/*.rockspec", ".luacheckrc" }
files["**/*.rockspec"] = { std = "+rockspec" }
